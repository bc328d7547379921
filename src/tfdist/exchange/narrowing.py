"""Let gradients of 32 bits travel in 16 or 8 bits, and be added up in 32.

What a task sends is rounded: its own numbers, and each sum that it passes on. All tasks end with the same
bits, for they all read the last rounding of a sum. Rounding to 8 bits is coarse, so each task keeps what it
has rounded away and adds that to what it sends in the next exchange: over several steps nothing is lost.
"""

from typing import Any, Literal, Protocol

import numpy as np

__all__ = ["Narrow", "Narrowing", "WireType"]

WireType = Literal["float32", "bfloat16", "float16", "int8"]

Array = np.ndarray[Any, Any]
_BLOCK = 256  # numbers of 8 bits that have one scale
_MOST = 127.0


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
        # A block with a number that is none has a scale that is none, and is none wholly.
        scale = np.abs(blocks).max(axis=1) / _MOST
        into["scale"] = scale
        safe = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0).astype(np.float32)
        finite = np.clip(np.nan_to_num(blocks / safe[:, None]), -_MOST, _MOST)
        into["steps"] = np.rint(finite)

    def read(self, written: Array) -> Array:
        numbers: Array = written["steps"] * written["scale"][:, None]
        return numbers.reshape(-1)


_FORMS: dict[str, _Form] = {"bfloat16": _BFloat16(), "float16": _Float16(), "int8": _Int8()}


class Narrowing:
    """Narrow the exchanges of one array, again and again."""

    def __init__(self, wire_type: str) -> None:
        self._name, self._form = wire_type, _FORMS[wire_type]
        self._kept: Array | None = None

    def loaded(self, values: Array) -> "Narrow":
        """Give the cargo that brings the sums into an array of 32 bits."""
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
        self._write(start, stop)

    def add(self, start: int, theirs: Array) -> None:
        """Add what has come to this task's own, and have it ready to go on."""
        numbers = self._numbers[start * self._form.block : (start + len(theirs)) * self._form.block]
        numbers += self._form.read(theirs)
        self._write(start, start + len(theirs))

    def unload(self) -> None:
        """Put the sums where they belong."""
        self._values[:] = self._form.read(self.wire)[: len(self._values)]

    def _write(self, start: int, stop: int) -> None:
        wire = self.wire[start:stop]
        place = slice(start * self._form.block, stop * self._form.block)
        numbers = self._numbers[place]
        if self._kept is None:
            self._form.write(numbers, wire)
            return
        numbers += self._kept[place]
        self._form.write(numbers, wire)
        # What is no number is for the training to see, and not to stay for ever.
        self._kept[place] = np.nan_to_num(numbers - self._form.read(wire), nan=0.0, posinf=0.0, neginf=0.0)


def _padded(values: Array, form: _Form) -> int:
    return -(-len(values) // form.block) * form.block
