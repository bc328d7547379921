"""Let gradients of 32 bits travel in 16 or 8 bits, and be added up in 32.

What a task sends is rounded: its own numbers, and each sum that it passes on. All tasks end with the same
bits, for they all read the last rounding of a sum. Rounding to 8 bits is coarse, so each task keeps what it
has rounded away and adds that to what it sends in the next exchange: over several steps nothing is lost.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np

__all__ = ["Narrow", "Narrowing", "WireType"]

WireType = Literal["float32", "bfloat16", "float16", "int8"]

Array = np.ndarray[Any, Any]
_BLOCK = 256  # numbers of 8 bits that have one scale
_MOST = 127.0
_AT_ONCE = 1 << 14  # numbers


class _Form(Protocol):
    """Write numbers of 32 bits in fewer, and read them."""

    dtype: np.dtype[Any]
    block: int

    def write(self, numbers: Array, into: Array) -> None:
        """Round numbers."""

    def read(self, written: Array) -> Array:
        """Give rounded numbers in 32 bits."""


class _BFloat16:
    dtype, block = np.dtype(np.uint16), 1

    def write(self, numbers: Array, into: Array) -> None:
        bits = numbers.view(np.uint32)
        # To the nearest, and of two that are as near to the even one.
        np.right_shift(bits + (0x7FFF + ((bits >> 16) & 1)), 16, out=into, casting="unsafe")
        into[np.isnan(numbers)] = 0x7FC0  # which the addition may have made a number

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
        # A block with a number that is none has a scale that is none, and is read as none wholly.
        scale = np.maximum(blocks.max(axis=1), -blocks.min(axis=1)) / np.float32(_MOST)
        into["scale"] = scale
        is_usual = (scale > np.finfo(np.float32).tiny) & (scale < np.inf)
        steps = np.rint(blocks / np.where(is_usual, scale, np.float32(1))[:, None])
        steps[~is_usual] = 0
        into["steps"] = steps

    def read(self, written: Array) -> Array:
        numbers: Array = written["steps"] * written["scale"][:, None]
        return numbers.reshape(-1)


_FORMS: dict[str, _Form] = {"bfloat16": _BFloat16(), "float16": _Float16(), "int8": _Int8()}


class Narrowing:
    """Narrow the exchanges of one array, again and again."""

    def __init__(self, wire_type: str) -> None:
        self._name, self._form = wire_type, _FORMS[wire_type]
        self._kept: Array | None = None

    def loaded(self, values: Array, *, keeps: bool = True) -> "Narrow":
        """Give the cargo for an array of 32 bits; what 8 bits round away may be kept for the next one."""
        if not keeps:
            return Narrow(self._name, self._form, values, None)
        if self._form.block > 1 and (self._kept is None or len(self._kept) != _padded(values, self._form)):
            self._kept = np.zeros(_padded(values, self._form), np.float32)
        return Narrow(self._name, self._form, values, self._kept)


class Narrow:
    """Be the cargo of one round.

    Attributes:
        name: The type that travels.
        wire: What travels; a block of numbers is one element.
    """

    def __init__(self, name: str, form: _Form, values: Array, kept: Array | None) -> None:
        self.name, self._form, self._values, self._kept = name, form, values, kept
        length = _padded(values, form)
        self._numbers = values
        if length != len(values):
            self._numbers = np.zeros(length, np.float32)
            self._numbers[: len(values)] = values
        self.wire: Array = np.empty(length // form.block, form.dtype)

    def load(self, start: int, stop: int) -> None:
        """Have this task's own part ready to go."""
        for place in self._pieces(start, stop):
            self._write(place)

    def add(self, start: int, theirs: Array) -> None:
        """Add what has come to this task's own, and have it ready to go on."""
        for place in self._pieces(start, start + len(theirs)):
            numbers = self._numbers_at(place)
            numbers += self._form.read(theirs[place.start - start : place.stop - start])
            self._write(place)

    def unload(self) -> None:
        """Put the sums where they belong."""
        for place in self._pieces(0, len(self.wire)):
            self._numbers_at(place)[:] = self._form.read(self.wire[place])
        if self._numbers is not self._values:
            self._values[:] = self._numbers[: len(self._values)]

    def _pieces(self, start: int, stop: int) -> Iterator[slice]:
        """Cut a part of the cargo into pieces that stay in a core's cache, with all that is made of them."""
        step = _AT_ONCE // self._form.block
        return (slice(begin, min(begin + step, stop)) for begin in range(start, stop, step))

    def _numbers_at(self, place: slice) -> Array:
        return self._numbers[place.start * self._form.block : place.stop * self._form.block]

    def _write(self, place: slice) -> None:
        wire, numbers = self.wire[place], self._numbers_at(place)
        if self._kept is None:
            self._form.write(numbers, wire)
            return
        kept = self._kept[place.start * self._form.block : place.stop * self._form.block]
        numbers += kept
        self._form.write(numbers, wire)
        np.subtract(numbers, self._form.read(wire), out=kept)
        if not np.isfinite(kept).all():  # which is for the training to see, and not to stay for ever
            kept[~np.isfinite(kept)] = 0


def _padded(values: Array, form: _Form) -> int:
    return -(-len(values) // form.block) * form.block
