"""Leave parcels for a task of the same machine in memory that both see, in place of sending them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfdist.connections import count_as_sent
from tfdist.exchange.shared import Shared

__all__ = ["Shelves"]

Array = np.ndarray[Any, Any]


class Shelves:
    """Be one end of a line: leave parcels for the other end, and take those that it has left.

    Each way has room for one parcel. Who leaves the next one has to know that it was taken: each header that
    goes over the line says how many its sender has taken.

    Attributes:
        taken: How many parcels this end has taken.
    """

    def __init__(self, own: Shared, theirs: Shared) -> None:
        self._own, self._theirs = own, theirs
        self._left = self._fetched = self.taken = 0

    def leave(self, buffers: Sequence[Array]) -> bool:
        """Leave a parcel; say whether there was room."""
        if self._fetched < self._left:
            return False
        size = sum(map(len, buffers))
        self._own.grow(size)
        for each, place in _placed(buffers, self._own.first(size)):
            np.copyto(place, each)
        self._left += 1
        count_as_sent(size)
        return True

    def note(self, fetched: int) -> None:
        """Note how many the other end has taken."""
        self._fetched = max(self._fetched, fetched)

    def take(self, buffers: Sequence[Array]) -> None:
        """Take the parcel that was left.

        Raises:
            Broken: There is none of that size.
        """
        parcel = self._theirs.first(sum(map(len, buffers)))
        for each, place in _placed(buffers, parcel):
            np.copyto(each, place)
        self.taken += 1


def _placed(buffers: Sequence[Array], parcel: Array) -> Iterator[tuple[Array, Array]]:
    """Give each buffer with its place in a parcel."""
    begin = 0
    for each in buffers:
        yield each, parcel[begin : begin + len(each)]
        begin += len(each)
