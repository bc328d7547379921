"""Send to the next task of a ring, and receive from the previous one: over a line, or by memory both see."""

import errno
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdist.connections import count_as_sent
from tfdist.exchange.lines import Broken, Unmet
from tfdist.exchange.shared import Shared, share_memory
from tfdist.probing import reason_of

__all__ = ["Neighbour", "take_over"]

_ROOM = 1 << 23  # of memory, for what is on the way
_AT_ONCE = 1 << 20
_COUNT = struct.Struct("!Q")

Array = np.ndarray[Any, Any]


def take_over(name: str, line: socket.socket, *, sends: bool, may_share: bool) -> "Neighbour":
    """Take a line to a neighbour over, or memory in its place, if both ends may and can.

    Raises:
        Unmet: It hangs up.
    """
    try:
        memories = share_memory(line, may=may_share)
    except OSError as error:
        line.close()
        raise Unmet(f"hangs up: {reason_of(error)}") from error
    if memories is None:
        return Neighbour(name, line)
    own, theirs = memories
    return _NearNeighbour(name, line, own if sends else theirs)


class Neighbour:
    """Hold a line to a task of the ring, and count what goes over it.

    Attributes:
        name: The task.
        line: What leads to it; it never blocks.
        moved: How many bytes have gone over the line.
        has_room: The event of the line that has to be waited for when nothing more can be sent.
    """

    def __init__(self, name: str, line: socket.socket) -> None:
        self.name, self.line, self.moved = name, line, 0
        self.has_room = select.POLLOUT
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setblocking(False)

    def send(self, data: Array) -> int:
        """Send what there is room for; give how many bytes that was."""
        return self._counted(self.line.send, data.data)

    def receive(self, into: Array) -> int:
        """Receive what has come; give how many bytes that was."""
        return self._counted(self._heard, into.data)

    def _heard(self, into: memoryview) -> int:
        count = self.line.recv_into(into)
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "it has hung up")
        return count

    def _counted(self, move: Callable[[memoryview], int], data: memoryview) -> int:
        try:
            count = move(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(f"{self.name} is gone: {error.strerror}") from error
        self.moved += count
        return count


class _NearNeighbour(Neighbour):
    """Be on the same machine as the other task: what goes is in memory, and the line says how much it is.

    It is a pipe. The sender says how many bytes it has put in since the beginning; the receiver says how many
    it has taken out, and their places are free again.
    """

    def __init__(self, name: str, line: socket.socket, memory: Shared) -> None:
        """Take over the line, and the memory of whoever sends on it."""
        super().__init__(name, line)
        self.has_room = select.POLLIN  # for then the other one says that it has taken something out
        memory.grow(_ROOM)
        self._memory = memory.part(0, _ROOM)
        self._count = self._told = self._theirs = 0
        self._half = b""  # a message that has come in part

    def send(self, data: Array) -> int:
        """Put in what there is room for; give how many bytes that was."""
        if self._count - self._theirs == _ROOM:
            self._listen()
        place = self._count % _ROOM
        count = min(len(data), _ROOM - (self._count - self._theirs), _ROOM - place, _AT_ONCE)
        if count:
            np.copyto(self._memory[place : place + count], data[:count])
            self._count += count
            self._tell()
            count_as_sent(count)
        return count

    def receive(self, into: Array) -> int:
        """Take out what has come; give how many bytes that was."""
        if self._theirs == self._count:
            self._listen()
        place = self._count % _ROOM
        count = min(len(into), self._theirs - self._count, _ROOM - place, _AT_ONCE)
        if count:
            np.copyto(into[:count], self._memory[place : place + count])
            self._count += count
            if self._count - self._told >= _ROOM // 4:
                self._tell()
        return count

    def _tell(self) -> None:
        """Say how many bytes have gone through this end."""
        message = _COUNT.pack(self._count)
        # The system holds thousands of messages; the other end cannot be that many behind.
        if self._counted(self.line.send, memoryview(message)) != len(message):
            raise Broken(f"{self.name} does not take what is sent")
        self._told = self._count

    def _listen(self) -> None:
        """Hear how many have gone through the other end."""
        heard = bytearray(_COUNT.size * 64)
        size = self._counted(self._heard, memoryview(heard))
        said = self._half + heard[:size]
        whole = len(said) // _COUNT.size * _COUNT.size
        self._half = bytes(said[whole:])
        if whole:
            [self._theirs] = _COUNT.unpack(said[whole - _COUNT.size : whole])
