"""Share memory with a task of the same machine.

A connection within one machine copies data into the kernel and out of it again, piece by piece, with all
that a network needs. Instead, one task copies data into memory of its own, and the other task reads it
there. That memory is Linux's memfd: it has no name in any folder. Only a process that may inspect the owner
can open it, and it disappears with the last process that has it open.

Addresses do not prove that two tasks see the same memory, so the tasks try. Each writes a random value into
its own memory, and tells the other task over their connection where to look for it.
"""

import fcntl
import hmac
import logging
import mmap
import os
import struct
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.coordination.bytes_sent import count_as_sent
from tfdist.transport.authentication import Connection
from tfdist.transport.listen_and_call import ExchangeError, read_exactly

_NAME = "tfdist"
_NONCE_BYTES = 32
_OFFER = struct.Struct(f"!qq{_NONCE_BYTES}s")  # the process, its file descriptor, and the random value in it
_NO_OFFER = _OFFER.pack(-1, -1, b"")
_IS_SEEN, _IS_NOT_SEEN = b"+", b"-"
_BEGIN = mmap.PAGESIZE  # the random value is before it
_log = logging.getLogger("tfdist")

Array = np.ndarray[Any, Any]
# Messages in each direction: the other task may still compute with one when the next is due.
_MAX_MESSAGES = 2


def share_memory(connection: Connection, *, may: bool = True) -> "tuple[Shared, Shared] | None":
    """Return this task's memory and that of the other end of a connection; None unless both see both.

    The other end must call this too.

    Raises:
        OSError: The connection has broken.
    """
    own = Shared.new() if may else None
    connection.sendall(own.offer if own else _NO_OFFER)
    theirs = Shared.offered(read_exactly(connection, _OFFER.size))
    connection.sendall(_IS_SEEN if own and theirs else _IS_NOT_SEEN)
    is_seen = read_exactly(connection, len(_IS_SEEN)) == _IS_SEEN
    return (own, theirs) if own and theirs and is_seen else None


class Shared:
    """Memory that grows and never shrinks, because a reader of memory that has shrunk would be killed."""

    def __init__(self, file: int) -> None:
        self.offer, self._file = _NO_OFFER, file
        self._mapped: mmap.mmap | None = None
        weakref.finalize(self, os.close, file)

    @classmethod
    def new(cls) -> "Shared | None":
        """Create memory of this process; return None if the system has no memfd."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            memory = cls(os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            fcntl.fcntl(memory._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            nonce = os.urandom(_NONCE_BYTES)
            os.pwrite(memory._file, nonce, 0)
        except OSError as error:
            _log.info("no shared memory: %s; sending over TCP", error)
            return None
        memory.offer = _OFFER.pack(os.getpid(), memory._file, nonce)
        return memory

    @classmethod
    def offered(cls, offer: bytes) -> "Shared | None":
        """Return the memory that another process has offered; None if it is not on this machine."""
        process, file, nonce = _OFFER.unpack(offer)
        path = f"/proc/{process}/fd/{file}"
        try:
            # Check before opening: opening any file that another machine names could block, or have side
            # effects.
            if not str(Path(path).readlink()).startswith(f"/memfd:{_NAME} "):
                return None
            memory = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            seals = fcntl.fcntl(memory._file, fcntl.F_GET_SEALS)
            is_same = hmac.compare_digest(os.pread(memory._file, _NONCE_BYTES, 0), nonce)
        except OSError:
            return None
        return memory if is_same and seals & fcntl.F_SEAL_SHRINK else None

    def grow(self, size: int) -> None:
        """Grow the memory to at least this many bytes."""
        if _BEGIN + size > os.fstat(self._file).st_size:
            os.ftruncate(self._file, _BEGIN + size)

    def part(self, begin: int, size: int) -> Array:
        """Return a part of the memory as an array that is no view of another array.

        Raises:
            ExchangeError: The memory has fewer bytes than the other task reported.
        """
        end = _BEGIN + begin + size
        if self._mapped is None or end > len(self._mapped):
            self._mapped = mmap.mmap(self._file, 0)
        if begin < 0 or end > len(self._mapped):
            raise ExchangeError(f"the other task reported {size} bytes in shared memory that has fewer")
        return np.frombuffer(self._mapped, np.uint8, size, _BEGIN + begin)


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
