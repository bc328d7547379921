"""Carry parcels over one line, each way one at a time, with a header that says what is in them."""

import contextlib
import errno
import logging
import queue
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist.exchange.freight import ON_SHELF, Freight, Manifest
from tfdist.exchange.lines import Broken
from tfdist.exchange.shelves import Shelves

__all__ = ["Line"]

_HEADER = struct.Struct("!4s8sQBQQQ")
_MARK = b"post"
_SECONDS_BETWEEN_QUESTIONS = 1
_MOST_PIECES = 256  # of one call to the system, which takes 1024
_log = logging.getLogger("tfdist")

Array = np.ndarray[Any, Any]
WhyLost = Callable[[float], str]


class _Header(NamedTuple):
    """Say what comes: of which arrays, of which step, in which form, how many bytes, and where they begin.

    They follow, or are on the shelf. With it goes how many parcels the sender has given back.
    """

    mark: bytes
    manifest: bytes
    step: int
    form: int
    size: int
    begin: int
    given_back: int


class Line:
    """Send parcels to one other task, and receive parcels from it.

    Attributes:
        name: Who is at the other end.
        moved: How many bytes have gone out or come in, as the socket has counted them; not by the shelves.
        why_cut: Why it carries nothing any more; empty while it does.
    """

    def __init__(self, name: str, line: socket.socket, shelves: Shelves | None = None) -> None:
        self.name, self.why_cut = name, ""
        self._line, self._shelves = line, shelves
        self._moved = [0, 0]
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel wakes whoever waits when all is there, and not for each piece. A socket with a timeout of
        # Python's own does not block, and so cannot have that.
        line.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            line.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _SECONDS_BETWEEN_QUESTIONS, 0))
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._handed_over: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._freights: dict[tuple[bool, bytes], Freight] = {}
        self._newest = 0  # the latest step that somebody has waited for
        self._header: _Header | None = None  # come for a later step than that of who received it
        # Nobody else may get its number while a thread still waits on it: so it is closed with this object.
        weakref.finalize(self, line.close)

    @property
    def moved(self) -> int:
        """Give how many bytes have gone out and come in."""
        return sum(self._moved)

    def send(self, manifest: Manifest, step: int, arrays: Sequence[Array], why_lost: WhyLost) -> None:
        """Send arrays.

        Raises:
            Broken: The other end is gone or silent, or the line has been cut.
        """
        with self._sending, self._cutting():
            freight, pieces = self._freight(manifest, True), []
            form, begin, size = ON_SHELF, 0, freight.footprint
            shelf = self._shelves.leave(size) if self._shelves and freight.may_lie else None
            if shelf is not None:
                begin, memory = shelf
                freight.lay_out(arrays, memory)
            else:
                form, buffers = freight.load(arrays)
                size, pieces = sum(map(len, buffers)), [each.data for each in buffers if len(each)]
            given_back = self._shelves.given_back if self._shelves else 0
            header = _HEADER.pack(*_Header(_MARK, freight.mark, step, form, size, begin, given_back))
            self._put([memoryview(header), *pieces], why_lost)

    def hand_over(self, manifest: Manifest, step: int, arrays: Sequence[Array], why_lost: WhyLost) -> None:
        """Have arrays sent, in the order of the calls, and do not wait for it."""
        if self.why_cut:
            raise Broken(self.why_cut)
        self._handed_over.put((manifest, step, arrays, why_lost))
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, daemon=True)
            self._sender.start()

    def _send_all(self) -> None:
        while (parcel := self._handed_over.get()) is not None:
            try:
                self.send(*parcel)
            except Broken as error:
                _log.warning("a parcel was not sent: %s", error)
                return

    def receive(self, manifest: Manifest, step: int, why_lost: WhyLost) -> list[Array]:
        """Receive arrays.

        Raises:
            Broken: The other end is gone or silent, sends something else, or has begun a later step.
        """
        self._newest = max(self._newest, step)
        with self._receiving, self._cutting():
            freight = self._freight(manifest, False)
            while True:
                header = self._next_header(step, why_lost)
                if header is None or header.step > step:
                    self._header = header
                    break
                # What is left of a step that was given up comes in all the same: others may build on it.
                of_this = freight if header.step == step else self._freights.get((False, header.manifest))
                arrays = self._unpacked(header, of_this, why_lost)
                if header.step == step:
                    return arrays
        raise Broken(f"step {step} was given up")

    def _unpacked(self, header: _Header, freight: Freight | None, why_lost: WhyLost) -> list[Array]:
        if freight is not None and header.manifest != freight.mark:
            raise Broken(self._something_else)
        if header.form == ON_SHELF:
            return self._found_on_shelf(header, freight)
        room = None if freight is None else freight.room(header.form)
        buffers = [np.empty(header.size, np.uint8)] if room is None else room.buffers
        if header.size != sum(map(len, buffers)):
            raise Broken(self._something_else)
        for each in buffers:
            self._take(each, why_lost)
        return [] if room is None else room.arrays()

    def _found_on_shelf(self, header: _Header, freight: Freight | None) -> list[Array]:
        memory = self._shelves.look_at(header.begin, header.size) if self._shelves else None
        if freight is None:
            return []
        if memory is None or header.size != freight.footprint:
            raise Broken(self._something_else)
        return freight.room(ON_SHELF, memory).arrays()

    @property
    def _something_else(self) -> str:
        return f"{self.name} sends something else: its program is another one"

    def cut(self, why: str) -> None:
        """Carry nothing any more; wake whoever waits, here and at the other end."""
        self.why_cut = self.why_cut or why
        self._handed_over.put(None)
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _cutting(self) -> Any:
        """Cut the line where a parcel has not wholly gone or come: what follows could not be told apart."""
        if self.why_cut:
            raise Broken(self.why_cut)
        try:
            yield
        except BaseException as error:
            self.cut(str(error))
            raise

    def _freight(self, manifest: Manifest, is_sent: bool) -> Freight:
        key = is_sent, manifest.mark
        if key not in self._freights:
            self._freights[key] = Freight(manifest)
        return self._freights[key]

    def _next_header(self, step: int, why_lost: WhyLost) -> _Header | None:
        """Give the next header; None where somebody waits for a later step meanwhile."""
        if self._header is not None:
            header, self._header = self._header, None
            return header
        data = np.empty(_HEADER.size, np.uint8)
        if not self._take(data, why_lost, unless=lambda: self._newest > step):
            return None
        header = _Header(*_HEADER.unpack(data.tobytes()))
        if header.mark != _MARK:
            raise Broken(f"{self.name} does not speak as this version of tfdist does")
        if self._shelves:
            self._shelves.note(header.given_back)
        return header

    def _take(self, into: Array, why_lost: WhyLost, unless: Callable[[], bool] = lambda: False) -> bool:
        """Fill an array; say whether that was done, or not begun since something came in between."""
        filled, patience = 0, _Patience(why_lost)
        while filled < len(into):
            try:
                count = self._line.recv_into(into[filled:].data, 0, socket.MSG_WAITALL)
            except (BlockingIOError, InterruptedError):
                if not filled and unless():
                    return False
                patience.ask()
                continue
            except OSError as error:
                raise Broken(self._gone(error)) from error
            if not count:
                raise Broken(self._gone(ConnectionResetError(errno.ECONNRESET, "it has hung up")))
            filled += count
            self._moved[1] += count
            patience.renew()
        return True

    def _put(self, pieces: list[memoryview], why_lost: WhyLost) -> None:
        patience = _Patience(why_lost)
        while pieces:
            try:
                count = self._line.sendmsg(pieces[:_MOST_PIECES])
            except (BlockingIOError, InterruptedError):
                patience.ask()
                continue
            except OSError as error:
                raise Broken(self._gone(error)) from error
            self._moved[0] += count
            patience.renew()
            while pieces and count >= len(pieces[0]):
                count -= len(pieces.pop(0))
            if count:
                pieces[0] = pieces[0][count:]

    def _gone(self, error: OSError) -> str:
        return self.why_cut or f"{self.name} is gone: {error.strerror}"


class _Patience:
    """Ask, while nothing moves, whether the other end is there."""

    def __init__(self, why_lost: WhyLost) -> None:
        self._why_lost = why_lost
        self._since = 0.0

    def renew(self) -> None:
        """Begin anew: something has moved."""
        self._since = 0.0

    def ask(self) -> None:
        """Raise Broken where there is no more to be waited for."""
        self._since = self._since or time.monotonic() - _SECONDS_BETWEEN_QUESTIONS
        why = self._why_lost(time.monotonic() - self._since)
        if why:
            raise Broken(why)
