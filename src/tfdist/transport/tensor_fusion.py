"""Place several arrays in one for an exchange, in memory that TensorFlow uses without a copy."""

import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

# TensorFlow uses an array without a copy if its address is a multiple of this.
_ALIGNMENT = 64

Array = np.ndarray[Any, Any]


class Fusion:
    """The layout of several arrays of one type, and of certain shapes, in one array.

    Attributes:
        bytes: The size of the whole array, rounded up so that another one may follow.
    """

    def __init__(self, dtype: np.dtype[Any], shapes: tuple[tuple[int, ...], ...]) -> None:
        self._dtype, self._shapes = dtype, shapes
        step = max(_ALIGNMENT // dtype.itemsize, 1)
        self._slices: list[slice] = []
        self._gaps: list[slice] = []
        end = 0
        for shape in shapes:
            begin = -(-end // step) * step
            if begin > end:
                self._gaps.append(slice(end, begin))
            end = begin + int(np.prod(shape))
            self._slices.append(slice(begin, end))
        self._size = end
        self.bytes = -(-end * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        # Memory that was just mapped costs a page fault for every 4 KiB. So it is used again when TensorFlow
        # no longer reads it.
        self._free: deque[mmap.mmap] = deque()

    def empty(self) -> Array:
        """Return a new one-dimensional array with room for all arrays."""
        length = max(self._size * self._dtype.itemsize, 1)
        try:
            memory = self._free.popleft()
        except IndexError:
            memory = mmap.mmap(-1, length)
        # Every view keeps this array alive: NumPy records as a view's base this array, and not the memory
        # below it.
        whole = np.frombuffer(memory, self._dtype, self._size)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole

    def whole_of(self, memory: Array) -> Array:
        """Return the whole array in other memory, which begins at an address that TensorFlow accepts."""
        return memory.view(self._dtype)[: self._size]

    def fused(self, arrays: Sequence[Array], scale: float | None = None) -> Array:
        """Return a new one-dimensional array that contains all arrays, multiplied by `scale` if given.

        The gaps between them are 0, and so are their sums. Memory that is used again may have a NaN there: 8
        bits read a block with a NaN as NaN in all places.
        """
        whole = self.empty()
        for gap in self._gaps:
            whole[gap] = 0
        for part, array in zip(self.parts(whole), arrays, strict=True):
            if scale is None:
                np.copyto(part, array)
            else:
                np.multiply(array, self._dtype.type(scale), out=part)
        return whole

    def parts(self, whole: Array) -> list[Array]:
        """Return the arrays that were fused, as views of the whole."""
        return [whole[part].reshape(shape) for part, shape in zip(self._slices, self._shapes, strict=True)]
