"""Leave parcels for a task of the same machine in memory that both see, in place of sending them."""

import weakref
from collections import deque
from typing import Any

import numpy as np

from tfdist.connections import count_as_sent
from tfdist.exchange.shared import Shared

__all__ = ["Shelves"]

_ROOM = 2  # parcels each way: the other task may still compute with one when it is time for the next

Array = np.ndarray[Any, Any]


class Shelves:
    """Be one end of a line: leave parcels for the other end, and look at those that it has left.

    Nothing is copied out: TensorFlow computes with what lies there, and a place is free again when nothing of
    it is held any more. Each header that goes over the line says how many of the parcels that have come the
    other way its sender has given back, in the order in which they came.
    """

    def __init__(self, own: Shared, theirs: Shared) -> None:
        self._own, self._theirs = own, theirs
        self._places = [(0, 0)] * _ROOM  # where each begins, and how large it is
        self._end = 0
        self._left = self._free = 0  # parcels of this end, and those of them that were given back
        self._come = self._given_back = 0  # the same of the other end's
        self._let_go: deque[int] = deque()
        self._out_of_order: set[int] = set()

    def leave(self, size: int) -> tuple[int, Array] | None:
        """Give room for a parcel, with its place, if there is room."""
        if self._left - self._free >= _ROOM:
            return None
        turn = self._left % _ROOM
        if self._places[turn][1] < size:
            self._places[turn] = self._end, size
            self._end += size
            self._own.grow(self._end)
        begin, _ = self._places[turn]
        self._left += 1
        count_as_sent(size)
        return begin, self._own.part(begin, size)

    def note(self, given_back: int) -> None:
        """Note how many the other end has given back."""
        self._free = max(self._free, given_back)

    def look_at(self, begin: int, size: int) -> Array:
        """Give the next parcel, where it lies; it is given back when no view of it is held any more.

        Raises:
            Broken: There is none of that size.
        """
        memory = self._theirs.part(begin, size)
        weakref.finalize(memory, self._let_go.append, self._come).atexit = False
        self._come += 1
        return memory

    @property
    def given_back(self) -> int:
        """Give how many parcels this end has given back."""
        while self._let_go:
            self._out_of_order.add(self._let_go.popleft())
        while self._given_back in self._out_of_order:
            self._out_of_order.remove(self._given_back)
            self._given_back += 1
        return self._given_back
