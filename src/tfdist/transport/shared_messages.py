"""Pass messages to a task of the same machine in shared memory, instead of sending them."""

import weakref
from collections import deque
from typing import Any

import numpy as np

from tfdist.coordination.bytes_sent import count_as_sent
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.shared_memory import Shared

__all__ = ["SharedBuffers"]

# Messages in each direction: the other task may still compute with one when the next is due.
_MAX_MESSAGES = 2

Array = np.ndarray[Any, Any]


class SharedBuffers:
    """One end of the shared memory: writes messages for the other end, and reads its messages.

    Nothing is copied out: TensorFlow computes with the arrays in place, and a place is free again when
    nothing refers to it. Each header on the connection says how many received messages its sender has given
    back, in the order of their arrival.
    """

    def __init__(self, own: Shared, theirs: Shared) -> None:
        self._own, self._theirs = own, theirs
        self._places = [(0, 0)] * _MAX_MESSAGES  # the begin and the size of each
        self._end = 0
        # Messages that this end wrote, and how many of them were given back.
        self._written = self._returned = 0
        self._received = self._given_back = 0  # the same for the messages of the other end
        self._released: deque[int] = deque()
        self._out_of_order: set[int] = set()

    def reserve(self, size: int) -> tuple[int, Array] | None:
        """Return the place and the memory for a message, or None if there is no room."""
        if self._written - self._returned >= _MAX_MESSAGES:
            return None
        turn = self._written % _MAX_MESSAGES
        if self._places[turn][1] < size:
            self._places[turn] = self._end, size
            self._end += size
            self._own.grow(self._end)
        begin, _ = self._places[turn]
        self._written += 1
        count_as_sent(size)
        return begin, self._own.part(begin, size)

    def note(self, given_back: int) -> None:
        """Record how many messages the other end has given back.

        Raises:
            ExchangeError: This end has not written so many.
        """
        if given_back > self._written:
            raise ExchangeError(f"the other task gave {given_back} messages back, of {self._written}")
        self._returned = max(self._returned, given_back)

    def view(self, begin: int, size: int) -> Array:
        """Return the next message in place; it is given back when nothing refers to a view of it.

        Raises:
            ExchangeError: There is no message of that size.
        """
        memory = self._theirs.part(begin, size)
        weakref.finalize(memory, self._released.append, self._received).atexit = False
        self._received += 1
        return memory

    @property
    def given_back(self) -> int:
        """Return how many messages this end has given back."""
        while self._released:
            self._out_of_order.add(self._released.popleft())
        while self._given_back in self._out_of_order:
            self._out_of_order.remove(self._given_back)
            self._given_back += 1
        return self._given_back
