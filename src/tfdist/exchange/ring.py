"""Add arrays up over the tasks of a ring, in place.

An array is cut into as many segments as there are tasks. Each segment goes round once to be added up, and
once more as the sum. So a task sends 2 (n - 1) / n of the array's bytes, the least that an all-reduce can do;
each sum is computed in one order, by one task, and all tasks end with the same bits.

What a task sends is its own segment, and then what it has received and dealt with. So there are two streams,
of which one may not overtake the other, and no step waits for a whole segment.
"""

import select
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfdist.exchange.lines import Broken
from tfdist.exchange.neighbours import Neighbour

__all__ = ["Cargo", "Ring", "Taken", "Whole"]

_CHUNK = 1 << 20  # what is to be added comes in such pieces, which stay in a core's cache
_HEADER = struct.Struct("!4sQQ8s")
_SECONDS_BETWEEN_QUESTIONS = 1.0
# So little moves at once: a round that stands still with it waits for a task that has not come.
_BYTES_AT_ONCE = 4096

Array = np.ndarray[Any, Any]


class Cargo(Protocol):
    """Hold an array in the form in which it goes round.

    Attributes:
        name: The type of what travels.
        wire: What travels, in one dimension.
    """

    name: str
    wire: Array

    def load(self, start: int, stop: int) -> None:
        """Have this task's own part ready to go."""

    def add(self, start: int, theirs: Array) -> None:
        """Add what has come, and have it ready to go on."""

    def unload(self) -> None:
        """Put the sums where they belong, now that they are all there."""


class Whole:
    """Let an array travel as it is."""

    def __init__(self, values: Array) -> None:
        self.name, self.wire = values.dtype.name, values

    def load(self, start: int, stop: int) -> None:
        """Have it ready, as it is."""

    def add(self, start: int, theirs: Array) -> None:
        """Add what has come."""
        mine = self.wire[start : start + len(theirs)]
        np.add(mine, theirs, out=mine)

    def unload(self) -> None:
        """Leave it where it is."""


@dataclass
class Taken:
    """Add up what exchanges have taken.

    Attributes:
        seconds: In all.
        waiting: Of these, while another task had not come to the exchange yet.
    """

    seconds: float = 0.0
    waiting: float = 0.0


class Ring:
    """Be one of the tasks of a ring.

    Attributes:
        taken: What exchanges have taken in this task, by the type of what travelled.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        following: Neighbour,
        previous: Neighbour,
        why_lost: Callable[[float], str] = lambda seconds: "",
    ) -> None:
        """Take the lines to the neighbours over.

        Args:
            rank: The place of this task in the ring.
            size: How many tasks there are.
            following: The one that receives from this task.
            previous: The one that sends to it.
            why_lost: Asked once a second while nothing moves, with the seconds that this has been so: says
                why it will not move any more, or nothing.
        """
        self.rank, self.size, self.following, self.previous = rank, size, following, previous
        self._why_lost, self._why_broken, self._rounds = why_lost, "", 0
        self._scratch = np.empty(_CHUNK, np.uint8)
        self._lock = threading.Lock()
        self.taken: defaultdict[str, Taken] = defaultdict(Taken)

    @property
    def bytes_sent(self) -> int:
        """Give how many bytes this task has sent, as its socket counted them."""
        return self.following.moved

    def add_up(self, cargo: Cargo) -> None:
        """Let an array become the sum of the arrays of all tasks.

        Raises:
            Broken: A task is gone or silent, or exchanges something else; or an earlier exchange has failed.
        """
        with self._lock:
            if self._why_broken:
                raise Broken(self._why_broken)
            header = _HEADER.pack(b"ring", self._rounds, cargo.wire.nbytes, cargo.name[:8].encode())
            self._rounds += 1
            begun = time.monotonic()
            try:
                found = _Round(self, cargo, header, self._scratch, self._why_lost)
                found.run()
                cargo.unload()
            except Broken as error:
                self._why_broken = str(error)
                self.close()  # so that the neighbours notice at once, and theirs
                raise
            taken = self.taken[cargo.name]
            taken.seconds += time.monotonic() - begun
            taken.waiting += found.waiting

    def close(self) -> None:
        """Hang up."""
        self.following.line.close()
        self.previous.line.close()


class _Round:
    """Take one array round.

    Attributes:
        waiting: The seconds that it stood still because another task had not come.
    """

    def __init__(
        self, ring: Ring, cargo: Cargo, header: bytes, scratch: Array, why_lost: Callable[[float], str]
    ) -> None:
        self._following, self._previous, self._why_lost = ring.following, ring.previous, why_lost
        self._cargo, self._scratch, self._filled = cargo, scratch, 0
        self._header, self._heard = header, np.empty(len(header), np.uint8)
        size, width, raw = ring.size, cargo.wire.itemsize, cargo.wire.view(np.uint8)
        ends = [len(cargo.wire) * index // size for index in range(size + 1)]
        turns = [(ring.rank - turn) % size for turn in range(2 * size - 1)]
        segments = [raw[ends[index] * width : ends[index + 1] * width] for index in turns]
        cargo.load(ends[ring.rank], ends[ring.rank + 1])
        # Where in the cargo what is added belongs.
        self._places = deque(ends[index] for index in turns[1:size] if ends[index] < ends[index + 1])
        self._outgoing = deque([np.frombuffer(header, np.uint8), *segments[:-1]])
        self._incoming = deque([self._heard, *segments[1:]])
        # Of what comes in, the header is first, then what is added to the task's own, and then the sums.
        self._to_hear, self._to_add = len(header), sum(map(len, segments[1:size]))
        # How much may go out: what goes on must have come in, and have been dealt with.
        self._ready = len(header) + len(segments[0])
        self.waiting = 0.0
        self._is_small = cargo.wire.nbytes <= _BYTES_AT_ONCE

    def run(self) -> None:
        """Send and receive until all is done."""
        since = 0.0
        while self._drop_done():
            has_received = bool(self._incoming) and self._receive()
            has_sent = bool(self._outgoing and self._ready) and self._send()
            if has_received or has_sent:
                since = 0.0
            elif not self._wait():
                since = since or time.monotonic() - _SECONDS_BETWEEN_QUESTIONS
                why = self._why_lost(time.monotonic() - since)
                if why:
                    raise Broken(why)

    def _drop_done(self) -> bool:
        """Drop what has wholly come or gone; say whether there is more."""
        for stream in (self._outgoing, self._incoming):
            while stream and not len(stream[0]):
                stream.popleft()
        return bool(self._outgoing or self._incoming)

    def _send(self) -> bool:
        count = self._following.send(self._outgoing[0][: self._ready])
        self._outgoing[0] = self._outgoing[0][count:]
        self._ready -= count
        return count > 0

    def _receive(self) -> bool:
        target = self._incoming[0]
        if self._to_add and not self._to_hear:
            return self._add(target)
        count = self._previous.receive(target)
        self._incoming[0] = target[count:]
        if not self._to_hear:
            self._ready += count
        elif count:
            self._to_hear -= count
            self._check()
        return count > 0

    def _add(self, target: Array) -> bool:
        filled, width = self._filled, self._cargo.wire.itemsize
        count = self._previous.receive(self._scratch[filled : len(target)])
        filled += count
        whole = filled - filled % width
        if whole:
            self._cargo.add(self._places[0], self._scratch[:whole].view(self._cargo.wire.dtype))
            self._places[0] += whole // width
            if whole == len(target):
                self._places.popleft()
        self._filled = filled - whole
        self._scratch[: self._filled] = self._scratch[whole:filled]
        self._incoming[0] = target[whole:]
        self._to_add -= whole
        self._ready += whole
        return count > 0

    def _check(self) -> None:
        if not self._to_hear and self._heard.tobytes() != self._header:
            raise Broken(f"{self._previous.name} is at another exchange: the tasks run different steps")

    def _wait(self) -> bool:
        """Wait until something can move; say whether it can."""
        waiter = select.poll()
        if self._incoming:
            waiter.register(self._previous.line, select.POLLIN)
        if self._outgoing and self._ready:
            waiter.register(self._following.line, self._following.has_room)
        # Who has not sent its header has not come; who is behind that one is seen where little is to move.
        is_for_another, begun = bool(self._to_hear) or self._is_small, time.monotonic()
        can_move = bool(waiter.poll(_SECONDS_BETWEEN_QUESTIONS * 1000))
        self.waiting += is_for_another * (time.monotonic() - begun)
        return can_move
