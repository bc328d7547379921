"""Add arrays up over the tasks of a ring, in place.

An array is cut into as many segments as there are tasks. Each segment goes round the ring once to be added
up, and once more as the sum. So a task sends 2 (n - 1) / n of the array's bytes, the least possible for an
all-reduce. One task computes each sum, in one order, and all tasks end with the same bits.

A task sends its own segment first, and then what it has received and added to. So there are two streams.
The outgoing stream may not overtake the incoming one, and no step waits for a whole segment.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfdist._utils.profiler_span import EXCHANGE, WAITING, span
from tfdist.coordination.stall_watch import exchanging
from tfdist.transport.channel import SilenceCheck
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.neighbour_connection import Neighbour

_CHUNK = 1 << 20  # numbers to add are received in pieces of this size, which stay in a core's cache
_HEADER = struct.Struct("!4sQQ8s")
_SECONDS_BETWEEN_CHECKS = 1.0
# So few bytes move at once: while such an exchange stands still, it waits for a task that has not come.
_SMALL_BYTES = 4096

Array = np.ndarray[Any, Any]


class Payload(Protocol):
    """An array in the form in which it is sent round the ring.

    Attributes:
        name: The type that is sent.
        wire: What is sent, in one dimension.
    """

    name: str
    wire: Array

    def load(self, start: int, stop: int) -> None:
        """Prepare this task's own part to be sent."""

    def add(self, start: int, theirs: Array) -> None:
        """Add the received numbers, and prepare the sums to be sent."""

    def unload(self) -> None:
        """Write the sums into the array, once all of them have come."""


class Whole:
    """An array that is sent as it is."""

    def __init__(self, values: Array) -> None:
        self.name, self.wire = values.dtype.name, values

    def load(self, start: int, stop: int) -> None:
        """Do nothing: the array is sent as it is."""

    def add(self, start: int, theirs: Array) -> None:
        """Add the received numbers."""
        mine = self.wire[start : start + len(theirs)]
        np.add(mine, theirs, out=mine)

    def unload(self) -> None:
        """Do nothing: the sums are in the array already."""


@dataclass
class Taken:
    """The time that exchanges have taken.

    Attributes:
        seconds: In all.
        waiting: The part of it while another task had not come to the exchange yet.
        hidden: The part of it while this task still computed.
    """

    seconds: float = 0.0
    waiting: float = 0.0
    hidden: float = 0.0


class Ring:
    """One task's place in a ring.

    Attributes:
        rank: The place of this task in the ring.
        size: How many tasks there are.
        following: The task that receives from this task.
        previous: The task that sends to this task.
        why_lost: Returns why no more bytes will move, or an empty string.
        scratch: Memory for received numbers that are added.
        taken: The time that exchanges have taken in this task, by the type that was sent.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        following: Neighbour,
        previous: Neighbour,
        why_lost: Callable[[float], str] = lambda seconds: "",
    ) -> None:
        self.rank, self.size, self.following, self.previous = rank, size, following, previous
        self.why_lost, self._why_broken, self._rounds = why_lost, "", 0
        self.scratch = np.empty(_CHUNK, np.uint8)
        self._lock = threading.Lock()
        self.taken: defaultdict[str, Taken] = defaultdict(Taken)

    @property
    def bytes_sent(self) -> int:
        """Return how many bytes this task has sent, as its socket counted them."""
        return self.following.moved

    def add_up(self, payload: Payload) -> None:
        """Replace an array by the sum of the arrays of all tasks.

        Raises:
            ExchangeError: A task is gone or silent, or exchanges something else; or an earlier exchange has
                failed.
        """
        self._run(payload.name, payload.wire.nbytes, lambda header: _AddingRound(self, header, payload))

    def gather(self, mine: Array) -> list[Array]:
        """Return the arrays of all tasks, which may have different lengths, by rank.

        Args:
            mine: This task's array, of bytes.

        Raises:
            ExchangeError: See `add_up`.
        """
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = len(mine)
        self.add_up(Whole(sizes))
        arrays = [np.empty(size, np.uint8) for size in sizes]
        arrays[self.rank] = mine
        segments = [arrays[(self.rank - turn) % self.size] for turn in range(self.size)]
        self._run("gather", int(sizes.sum()), lambda header: _Round(self, header, segments))
        return arrays

    def _run(self, name: str, size: int, make_round: Callable[[bytes], "_Round"]) -> None:
        with self._lock:
            if self._why_broken:
                raise ExchangeError(self._why_broken)
            header = _HEADER.pack(b"ring", self._rounds, size, name[:8].encode())
            self._rounds += 1
            begun = time.monotonic()
            try:
                with exchanging(), span(EXCHANGE, round=self._rounds - 1, type=name, bytes=size):
                    exchange = make_round(header)
                    exchange.run()
            except BaseException as error:  # also of a lack of memory: the others would wait for the rest
                self._why_broken = str(error) or type(error).__name__
                self.close()  # so the neighbours notice at once, and then theirs
                raise
            taken = self.taken[name]
            taken.seconds += time.monotonic() - begun
            taken.waiting += exchange.waiting

    def close(self) -> None:
        """Close the connections to both neighbours, also if a child process has them open."""
        for neighbour in (self.following, self.previous):
            with contextlib.suppress(OSError):  # a neighbour may have closed it
                neighbour.connection.shutdown(socket.SHUT_RDWR)
            neighbour.connection.close()


class _Round:
    """One exchange, in which the segments of all tasks go round the ring.

    Attributes:
        waiting: The seconds in which it stood still because another task had not come.
    """

    def __init__(self, ring: Ring, header: bytes, segments: Sequence[Array]) -> None:
        """Plan to send all segments but the last, and to receive all but the first.

        Args:
            ring: The ring.
            header: What names the exchange, and is sent first.
            segments: Views of bytes, in the order in which they pass this task.
        """
        self._following, self._previous, self._why_lost = ring.following, ring.previous, ring.why_lost
        self._header, self._received_header = header, np.empty(len(header), np.uint8)
        self._outgoing = deque([np.frombuffer(header, np.uint8), *segments[:-1]])
        self._incoming = deque([self._received_header, *segments[1:]])
        self._is_small = sum(map(len, segments)) <= _SMALL_BYTES
        self._header_left = len(header)
        # How many bytes may be sent now: a byte that is passed on must have come in, and have been added.
        self._bytes_ready = len(header) + len(segments[0])
        self.waiting = 0.0

    def run(self) -> None:
        """Send and receive until the exchange is complete."""
        check = SilenceCheck(self._why_lost)
        while self._drop_finished():
            has_received = bool(self._incoming) and self._receive()
            has_sent = bool(self._outgoing and self._bytes_ready) and self._send()
            if has_received or has_sent:
                check.renew()
            elif not self._wait():
                check.ask()

    def _drop_finished(self) -> bool:
        """Drop segments that have come or gone wholly; return whether more remain."""
        for stream in (self._outgoing, self._incoming):
            while stream and not len(stream[0]):
                stream.popleft()
        return bool(self._outgoing or self._incoming)

    def _send(self) -> bool:
        count = self._following.send(self._outgoing[0][: self._bytes_ready])
        self._outgoing[0] = self._outgoing[0][count:]
        self._bytes_ready -= count
        return count > 0

    def _receive(self) -> bool:
        if not self._header_left:
            return self._receive_segment()
        count = self._previous.receive(self._incoming[0])
        self._incoming[0] = self._incoming[0][count:]
        self._header_left -= count
        if not self._header_left and self._received_header.tobytes() != self._header:
            raise ExchangeError(
                f"{self._previous.name} is at another exchange: the tasks run different steps"
            )
        return count > 0

    def _receive_segment(self) -> bool:
        count = self._previous.receive(self._incoming[0])
        self._incoming[0] = self._incoming[0][count:]
        self._bytes_ready += count
        return count > 0

    def _wait(self) -> bool:
        """Wait until bytes can move; return whether they can."""
        waiter = select.poll()
        if self._incoming:
            waiter.register(self._previous.connection, select.POLLIN)
        if self._outgoing and self._bytes_ready:
            waiter.register(self._following.connection, self._following.has_room)
        # A task that has not sent its header has not come yet. A task further back is noticed where few bytes
        # move.
        if not (self._header_left or self._is_small):
            return bool(waiter.poll(_SECONDS_BETWEEN_CHECKS * 1000))
        begun = time.monotonic()
        with span(WAITING):
            can_move = bool(waiter.poll(_SECONDS_BETWEEN_CHECKS * 1000))
        self.waiting += time.monotonic() - begun
        return can_move


class _AddingRound(_Round):
    """One exchange that adds an array up: each segment goes round to be added up, and then as the sum."""

    def __init__(self, ring: Ring, header: bytes, payload: Payload) -> None:
        size, width, raw = ring.size, payload.wire.itemsize, payload.wire.view(np.uint8)
        ends = [len(payload.wire) * index // size for index in range(size + 1)]
        turns = [(ring.rank - turn) % size for turn in range(2 * size - 1)]
        segments = [raw[ends[index] * width : ends[index + 1] * width] for index in turns]
        super().__init__(ring, header, segments)
        self._payload, self._scratch, self._filled = payload, ring.scratch, 0
        # Incoming bytes are first the numbers to add to the task's own, and then the sums.
        self._left_to_add = sum(map(len, segments[1:size]))
        # The offset in the payload of each incoming segment that is added.
        self._add_offsets = deque(ends[index] for index in turns[1:size] if ends[index] < ends[index + 1])
        self._is_small = payload.wire.nbytes <= _SMALL_BYTES
        payload.load(ends[ring.rank], ends[ring.rank + 1])

    def run(self) -> None:
        """Send, receive and add until the sums are in the array."""
        super().run()
        self._payload.unload()

    def _receive_segment(self) -> bool:
        if not self._left_to_add:
            return super()._receive_segment()
        target, filled, width = self._incoming[0], self._filled, self._payload.wire.itemsize
        count = self._previous.receive(self._scratch[filled : len(target)])
        filled += count
        whole = filled - filled % width
        if whole:
            self._payload.add(self._add_offsets[0], self._scratch[:whole].view(self._payload.wire.dtype))
            self._add_offsets[0] += whole // width
            if whole == len(target):
                self._add_offsets.popleft()
        self._filled = filled - whole
        self._scratch[: self._filled] = self._scratch[whole:filled]
        self._incoming[0] = target[whole:]
        self._left_to_add -= whole
        self._bytes_ready += whole
        return count > 0
