"""Have memory that a task of the same machine sees too.

What goes over a connection within one machine is copied into the kernel and out of it again, piece by piece,
with all that a network needs. Here one task copies it into memory of its own, and the other one from there to
where it is wanted. That memory is Linux's memfd: it has no name in any folder, only who may look into the
process can open it, and it is gone with the last process that has it, however that one ends.

That two tasks see the same memory is not concluded from their addresses, but tried: each writes down in its
own what nobody can guess, and tells the other one over their line where to look for it.
"""

import fcntl
import hmac
import logging
import mmap
import os
import socket
import struct
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.exchange.lines import Broken, read_exactly

__all__ = ["Shared", "share_memory"]

_NAME = "tfdist"
_NONCE_BYTES = 32
_OFFER = struct.Struct(f"!qq{_NONCE_BYTES}s")  # the process, its file, and what is written there
_NO_OFFER = _OFFER.pack(-1, -1, b"")
_SEEN, _UNSEEN = b"+", b"-"
_BEGIN = mmap.PAGESIZE  # what nobody can guess is before it
_log = logging.getLogger("tfdist")

Array = np.ndarray[Any, Any]


def share_memory(line: socket.socket, *, may: bool = True) -> "tuple[Shared, Shared] | None":
    """Give this task's memory and that of the other end of a line, which calls this too, if both see both.

    Raises:
        OSError: The line has broken.
    """
    own = Shared.new() if may else None
    line.sendall(own.offer if own else _NO_OFFER)
    theirs = Shared.offered(read_exactly(line, _OFFER.size))
    line.sendall(_SEEN if own and theirs else _UNSEEN)
    is_seen = read_exactly(line, len(_SEEN)) == _SEEN
    return (own, theirs) if own and theirs and is_seen else None


class Shared:
    """Hold memory that grows and never shrinks, or who looks at it could find nothing there and be killed."""

    def __init__(self, file: int) -> None:
        self.offer, self._file = _NO_OFFER, file
        self._mapped: mmap.mmap | None = None
        weakref.finalize(self, os.close, file)

    @classmethod
    def new(cls) -> "Shared | None":
        """Make memory of this process's own, if the system can."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            found = cls(os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            fcntl.fcntl(found._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            nonce = os.urandom(_NONCE_BYTES)
            os.pwrite(found._file, nonce, 0)
        except OSError as error:
            _log.info("all goes over lines: %s", error)
            return None
        found.offer = _OFFER.pack(os.getpid(), found._file, nonce)
        return found

    @classmethod
    def offered(cls, offer: bytes) -> "Shared | None":
        """Find the memory that another process has told of, if it is on this machine."""
        process, file, nonce = _OFFER.unpack(offer)
        path = f"/proc/{process}/fd/{file}"
        try:
            # To open whatever is there on another machine's word could wait for ever, or set something off.
            if not str(Path(path).readlink()).startswith(f"/memfd:{_NAME} "):
                return None
            found = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            seals = fcntl.fcntl(found._file, fcntl.F_GET_SEALS)
            is_it = hmac.compare_digest(os.pread(found._file, _NONCE_BYTES, 0), nonce)
        except OSError:
            return None
        return found if is_it and seals & fcntl.F_SEAL_SHRINK else None

    def grow(self, size: int) -> None:
        """Have so many bytes at least."""
        if _BEGIN + size > os.fstat(self._file).st_size:
            os.ftruncate(self._file, _BEGIN + size)

    def part(self, begin: int, size: int) -> Array:
        """Give so many bytes from there on, as an array of their own: no view of another one.

        Raises:
            Broken: There are fewer, though they were said to be there.
        """
        end = _BEGIN + begin + size
        if self._mapped is None or end > len(self._mapped):
            self._mapped = mmap.mmap(self._file, 0)
        if begin < 0 or end > len(self._mapped):
            raise Broken(f"{size} bytes were said to be in memory that has fewer")
        return np.frombuffer(self._mapped, np.uint8, size, _BEGIN + begin)
