"""Put arrays together in one for an exchange, in memory that TensorFlow takes over and gives back."""

import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Fusion"]

# TensorFlow takes an array over without copying it where it begins at a multiple of this.
_ALIGNMENT = 64

Array = np.ndarray[Any, Any]


class Fusion:
    """Fuse arrays of one type, and of certain shapes, to one array.

    Attributes:
        bytes: How many it takes; what comes after so many may be the next of these.
    """

    def __init__(self, dtype: np.dtype[Any], shapes: tuple[tuple[int, ...], ...]) -> None:
        self._dtype, self._shapes = dtype, shapes
        step = max(_ALIGNMENT // dtype.itemsize, 1)
        self._places: list[slice] = []
        end = 0
        for shape in shapes:
            begin = -(-end // step) * step
            end = begin + int(np.prod(shape))
            self._places.append(slice(begin, end))
        self._size = end
        self.bytes = -(-end * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        # Memory that was just mapped costs a page fault for every 4 KiB: so it is used again, when TensorFlow
        # needs nothing of it any more. What lies between the arrays is 0, and so are all sums of it.
        self._free: deque[mmap.mmap] = deque()

    def empty(self) -> Array:
        """Give a new array of one dimension with room for all; what lies between them is 0."""
        length = max(self._size * self._dtype.itemsize, 1)
        try:
            memory = self._free.popleft()
        except IndexError:
            memory = mmap.mmap(-1, length)
        # Every view of this array keeps it alive: NumPy looks for the array that a view is of, no further.
        whole = np.frombuffer(memory, self._dtype, self._size)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole

    def whole_of(self, memory: Array) -> Array:
        """Give the array that lies in other memory, which begins where TensorFlow can take it over."""
        return memory.view(self._dtype)[: self._size]

    def fused(self, arrays: Sequence[Array], scale: float | None = None) -> Array:
        """Give a new array of one dimension that holds all, times a number if one is given."""
        whole = self.empty()
        for part, array in zip(self.parts(whole), arrays, strict=True):
            if scale is None:
                np.copyto(part, array)
            else:
                np.multiply(array, self._dtype.type(scale), out=part)
        return whole

    def parts(self, whole: Array) -> list[Array]:
        """Give the arrays that were fused, as views of the whole."""
        return [whole[place].reshape(shape) for place, shape in zip(self._places, self._shapes, strict=True)]
