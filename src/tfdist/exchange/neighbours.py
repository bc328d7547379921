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
_MESSAGE = struct.Struct("!Q?")  # how many bytes, and whether there is no room for more

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

    It is a pipe. The sender says how many bytes it has put in since the beginning. When there is no room it
    says that too, and the receiver answers how many it has taken out, as soon as there is room again. Nothing
    else goes back: a task that is done may end while the next one still reads, and what reaches it then would
    have the system drop what it has said.
    """

    def __init__(self, name: str, line: socket.socket, memory: Shared) -> None:
        """Take over the line, and the memory of whoever sends on it."""
        super().__init__(name, line)
        self.has_room = select.POLLIN  # for then the answer has come
        memory.grow(_ROOM)
        self._memory = memory.part(0, _ROOM)
        self._count = self._theirs = 0
        self._is_asked = False
        self._half = b""  # a message that has come in part

    def send(self, data: Array) -> int:
        """Put in what there is room for; give how many bytes that was."""
        if self._count - self._theirs == _ROOM:
            if not self._is_asked:
                self._tell(is_full=True)
                self._is_asked = True
            if not self._listen():
                return 0
            self._is_asked = False
        place = self._count % _ROOM
        count = min(len(data), _ROOM - (self._count - self._theirs), _ROOM - place, _AT_ONCE)
        np.copyto(self._memory[place : place + count], data[:count])
        self._count += count
        self._tell()
        count_as_sent(count)
        return count

    def receive(self, into: Array) -> int:
        """Take out what has come; give how many bytes that was."""
        if self._theirs == self._count and not self._listen():
            return 0
        place = self._count % _ROOM
        count = min(len(into), self._theirs - self._count, _ROOM - place, _AT_ONCE)
        np.copyto(into[:count], self._memory[place : place + count])
        self._count += count
        if self._is_asked and self._theirs - self._count <= _ROOM // 2:
            self._is_asked = False
            self._tell()
        return count

    def _tell(self, *, is_full: bool = False) -> None:
        """Say how many bytes have gone through this end."""
        message = _MESSAGE.pack(self._count, is_full)
        # The system holds thousands of messages; the other end cannot be that many behind.
        if self._counted(self.line.send, memoryview(message)) != len(message):
            raise Broken(f"{self.name} does not take what is sent")

    def _listen(self) -> bool:
        """Hear how many have gone through the other end; say whether it has said anything."""
        heard = bytearray(_MESSAGE.size * 64)
        size = self._counted(self._heard, memoryview(heard))
        said = self._half + heard[:size]
        whole = len(said) // _MESSAGE.size * _MESSAGE.size
        self._half = bytes(said[whole:])
        for self._theirs, is_full in _MESSAGE.iter_unpack(said[:whole]):
            self._is_asked = self._is_asked or is_full
        return whole > 0
