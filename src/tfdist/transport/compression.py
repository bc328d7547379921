"""Send 32-bit gradients in 16 or 8 bits, and add them up in 32 bits.

A task rounds what it sends: its own numbers, and each sum that it passes on. All tasks end with the same
bits, because all read the last rounding of a sum. Rounding to 8 bits is coarse. So each task keeps the
rounding error and adds it to what it sends in the next exchange: over several steps nothing is lost.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
_BLOCK = 256  # 8-bit numbers that share one scale
_INT8_MAX = 127.0
_NUMBERS_PER_PIECE = 1 << 14


class _Format(Protocol):
    """A format that stores 32-bit numbers in fewer bits."""

    dtype: np.dtype[Any]
    block: int

    def write(self, numbers: Array, into: Array) -> None:
        """Round numbers."""

    def read(self, written: Array) -> Array:
        """Return rounded numbers in 32 bits."""


class _BFloat16:
    dtype, block = np.dtype(np.uint16), 1

    def write(self, numbers: Array, into: Array) -> None:
        bits = numbers.view(np.uint32)
        # To the nearest; of two that are equally near, to the even one.
        np.right_shift(bits + (0x7FFF + ((bits >> 16) & 1)), 16, out=into, casting="unsafe")
        into[np.isnan(numbers)] = 0x7FC0  # the addition may have turned NaN into a number

    def read(self, written: Array) -> Array:
        return (written.astype(np.uint32) << 16).view(np.float32)


class _Float16:
    dtype, block = np.dtype(np.float16), 1

    def write(self, numbers: Array, into: Array) -> None:
        np.copyto(into, numbers, casting="same_kind")

    def read(self, written: Array) -> Array:
        return written.astype(np.float32)


class _Int8:
    dtype, block = np.dtype([("scale", np.float32), ("steps", np.int8, (_BLOCK,))]), _BLOCK

    def write(self, numbers: Array, into: Array) -> None:
        blocks = numbers.reshape(-1, _BLOCK)
        # A block with a NaN or an infinity gets a scale that is NaN or infinite, so all of it is read as
        # such.
        scale = np.maximum(blocks.max(axis=1), -blocks.min(axis=1)) / np.float32(_INT8_MAX)
        into["scale"] = scale
        is_usual = (scale > np.finfo(np.float32).tiny) & (scale < np.inf)
        steps = np.rint(blocks / np.where(is_usual, scale, np.float32(1))[:, None])
        steps[~is_usual] = 0
        into["steps"] = steps

    def read(self, written: Array) -> Array:
        numbers: Array = written["steps"] * written["scale"][:, None]
        return numbers.reshape(-1)


_FORMATS: dict[str, _Format] = {"bfloat16": _BFloat16(), "float16": _Float16(), "int8": _Int8()}


class Narrowing:
    """Compress the exchanges of one array, step after step.

    Attributes:
        residual: What 8 bits have rounded away and the next exchange adds; None before the first one.
    """

    def __init__(self, wire_type: str) -> None:
        self._name, self._format = wire_type, _FORMATS[wire_type]
        self.residual: Array | None = None

    def loaded(self, values: Array, *, keeps: bool = True) -> "Narrow":
        """Return the payload for a 32-bit array; `keeps` adds what 8 bits round away to the next one."""
        if not keeps:
            return Narrow(self._name, self._format, values, None)
        if self._format.block > 1 and (
            self.residual is None or len(self.residual) != _padded(values, self._format)
        ):
            self.residual = np.zeros(_padded(values, self._format), np.float32)
        return Narrow(self._name, self._format, values, self.residual)


class Narrow:
    """The compressed payload of one exchange.

    Attributes:
        name: The type that is sent.
        wire: What is sent; a block of numbers is one element.
    """

    def __init__(self, name: str, format_: _Format, values: Array, residual: Array | None) -> None:
        self.name, self._format, self._values, self._residual = name, format_, values, residual
        length = _padded(values, format_)
        self._numbers = values
        if length != len(values):
            self._numbers = np.zeros(length, np.float32)
            self._numbers[: len(values)] = values
        self.wire: Array = np.empty(length // format_.block, format_.dtype)

    def load(self, start: int, stop: int) -> None:
        """Round this task's own part, ready to send."""
        for place in self._slices(start, stop):
            self._write(place)

    def add(self, start: int, theirs: Array) -> None:
        """Add the received numbers to this task's own, and round the sums, ready to send."""
        for place in self._slices(start, start + len(theirs)):
            numbers = self._numbers_at(place)
            numbers += self._format.read(theirs[place.start - start : place.stop - start])
            self._write(place)

    def unload(self) -> None:
        """Write the sums into the array."""
        for place in self._slices(0, len(self.wire)):
            self._numbers_at(place)[:] = self._format.read(self.wire[place])
        if self._numbers is not self._values:
            self._values[:] = self._numbers[: len(self._values)]

    def _slices(self, start: int, stop: int) -> Iterator[slice]:
        """Cut a part of the payload into pieces that fit into a core's cache with their results."""
        step = _NUMBERS_PER_PIECE // self._format.block
        return (slice(begin, min(begin + step, stop)) for begin in range(start, stop, step))

    def _numbers_at(self, place: slice) -> Array:
        return self._numbers[place.start * self._format.block : place.stop * self._format.block]

    def _write(self, place: slice) -> None:
        wire, numbers = self.wire[place], self._numbers_at(place)
        if self._residual is None:
            self._format.write(numbers, wire)
            return
        residual = self._residual[place.start * self._format.block : place.stop * self._format.block]
        numbers += residual
        self._format.write(numbers, wire)
        np.subtract(numbers, self._format.read(wire), out=residual)
        if not np.isfinite(residual).all():  # the training reports NaN; it must not stay here for ever
            residual[~np.isfinite(residual)] = 0


def _padded(values: Array, form: _Format) -> int:
    return -(-len(values) // form.block) * form.block
