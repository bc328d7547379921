"""Send to the next task of a ring, and receive from the previous one, over TCP or shared memory."""

import errno
import select
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdist.coordination.bytes_sent import count_as_sent
from tfdist.coordination.grpc_health_probe import reason_of
from tfdist.transport.authentication import Connection
from tfdist.transport.listen_and_call import ConnectError, ExchangeError
from tfdist.transport.shared_memory import Shared, share_memory

_CAPACITY = 1 << 23  # bytes of shared memory between two neighbours
_BYTES_AT_ONCE = 1 << 20
_MESSAGE = struct.Struct("!Q?")  # how many bytes, and whether the memory is full

Array = np.ndarray[Any, Any]


def make_neighbour(name: str, connection: Connection, *, sends: bool, may_share: bool) -> "Neighbour":
    """Return a neighbour that uses a connection, or shared memory if both ends may and can.

    Raises:
        ConnectError: The neighbour closes the connection.
    """
    try:
        memories = share_memory(connection, may=may_share)
    except OSError as error:
        connection.close()
        raise ConnectError(f"closes the connection: {reason_of(error)}") from error
    if memories is None:
        return Neighbour(name, connection)
    own, theirs = memories
    return _SharedMemoryNeighbour(name, connection, own if sends else theirs)


class Neighbour:
    """A connection to a task of the ring, with a count of its bytes.

    Attributes:
        name: The task.
        connection: The connection; it never blocks.
        moved: How many bytes have gone over the connection.
        has_room: The poll event to wait for when nothing more can be sent.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self.name, self.connection, self.moved = name, connection, 0
        self.has_room = select.POLLOUT
        connection.setblocking(False)

    def send(self, data: Array) -> int:
        """Send as many bytes as there is room for; return how many."""
        return self._moved_bytes(self.connection.send, data.data)

    def receive(self, into: Array) -> int:
        """Receive the bytes that have come; return how many."""
        return self._moved_bytes(self._receive_into, into.data)

    def _receive_into(self, into: memoryview) -> int:
        count = self.connection.recv_into(into)
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "it has closed the connection")
        return count

    def _moved_bytes(self, move: Callable[[memoryview], int], data: memoryview) -> int:
        try:
            count = move(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ExchangeError(f"{self.name} is gone: {error.strerror}") from error
        self.moved += count
        return count


class _SharedMemoryNeighbour(Neighbour):
    """A neighbour on the same machine: the data is in shared memory, and the connection carries the counts.

    The memory works as a pipe. The sender reports how many bytes it has written since the start. When the
    memory is full, the sender reports that too. The receiver answers with the bytes it has read, as soon as
    there is room again. The receiver sends nothing else: a task that is done may exit while the next one
    still reads, and data that then arrives for it would make the system drop its last message.
    """

    def __init__(self, name: str, connection: Connection, memory: Shared) -> None:
        super().__init__(name, connection)
        self.has_room = select.POLLIN  # then the receiver's answer has come
        memory.grow(_CAPACITY)
        self._memory = memory.part(0, _CAPACITY)
        self._count = self._their_count = 0
        self._is_full_reported = False
        self._partial_message = b""  # the received part of a message

    def send(self, data: Array) -> int:
        """Write as many bytes as there is room for; return how many."""
        if self._count - self._their_count == _CAPACITY:
            if not self._is_full_reported:
                self._send_count(is_full=True)
                self._is_full_reported = True
            if not self._read_counts():
                return 0
            self._is_full_reported = False
        place = self._count % _CAPACITY
        count = min(
            len(data), _CAPACITY - (self._count - self._their_count), _CAPACITY - place, _BYTES_AT_ONCE
        )
        np.copyto(self._memory[place : place + count], data[:count])
        self._count += count
        self._send_count()
        count_as_sent(count)
        return count

    def receive(self, into: Array) -> int:
        """Read the bytes that have come; return how many."""
        if self._their_count == self._count and not self._read_counts():
            return 0
        place = self._count % _CAPACITY
        count = min(len(into), self._their_count - self._count, _CAPACITY - place, _BYTES_AT_ONCE)
        np.copyto(into[:count], self._memory[place : place + count])
        self._count += count
        if self._is_full_reported and self._their_count - self._count <= _CAPACITY // 2:
            self._is_full_reported = False
            self._send_count()
        return count

    def _send_count(self, *, is_full: bool = False) -> None:
        """Send how many bytes have gone through this end."""
        message = _MESSAGE.pack(self._count, is_full)
        # The system holds thousands of messages; the other end cannot be that many behind.
        if self._moved_bytes(self.connection.send, memoryview(message)) != len(message):
            raise ExchangeError(f"{self.name} does not read what is sent to it")

    def _read_counts(self) -> bool:
        """Read how many bytes have gone through the other end; return whether a message has come."""
        buffer = bytearray(_MESSAGE.size * 64)
        size = self._moved_bytes(self._receive_into, memoryview(buffer))
        received = self._partial_message + buffer[:size]
        complete = len(received) // _MESSAGE.size * _MESSAGE.size
        self._partial_message = bytes(received[complete:])
        for count, is_full in _MESSAGE.iter_unpack(received[:complete]):
            if count < self._their_count or abs(count - self._count) > _CAPACITY:
                raise ExchangeError(f"{self.name} reports a count that is not possible: {count} bytes")
            self._their_count, self._is_full_reported = count, self._is_full_reported or is_full
        return complete > 0
