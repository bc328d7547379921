"""Send messages over one connection, in each direction one at a time, with a header that describes them."""

import contextlib
import errno
import logging
import queue
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist._utils.profiler_span import EXCHANGE, WAITING, span
from tfdist.transport.authentication import Connection
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.shared_memory import SharedBuffers
from tfdist.transport.worker_and_ps_messages import (
    FORGET,
    IN_SHARED_MEMORY,
    WITH_MANIFEST,
    Manifest,
    MessageCodec,
    read_manifest_sent,
)

_HEADER = struct.Struct("!4s8sQBQQQ")
_MARK = b"tfdi"
_SECONDS_BETWEEN_CHECKS = 1
# Both ends may have been stopped for a while. A silent end takes some seconds to ask.
_MOST_COUNTED_AT_ONCE = 10.0
_MAX_PIECES = 256  # of one system call, which takes 1024
_SKIPPED_AT_ONCE = 1 << 20
_LONGEST_MANIFEST = 1 << 24
# Each function that TensorFlow traces has manifests of its own. Their codecs keep buffers, and with int8 the
# rounding errors, as large as the arrays. A script that trains many models would keep those of all.
_MOST_FUNCTIONS = 16
_log = logging.getLogger("tfdist")

Array = np.ndarray[Any, Any]
WhyLost = Callable[[float], str]


class GivenUp(ExchangeError):
    """A later step has begun: nobody waits for the arrays of this one."""


class _Header(NamedTuple):
    """The description of what follows: which arrays and step, the form, the count of bytes, and their begin.

    The arrays follow on the connection, or are in the shared buffer. In the form with a manifest, its text
    comes first, and `begin` is its length. The header also says how many messages the sender has given back.
    """

    mark: bytes
    manifest: bytes
    step: int
    form: int
    size: int
    begin: int
    given_back: int


class Channel:
    """A channel: sends messages to one other task, and receives messages from it.

    Attributes:
        name: The task at the other end.
        moved: How many bytes have gone out or come in, as counted by the socket; without the shared
            buffers.
        why_cut: Why the channel is closed; empty while it is open.
    """

    def __init__(
        self, name: str, connection: Connection, shared_buffers: SharedBuffers | None = None
    ) -> None:
        self.name, self.why_cut = name, ""
        self._connection, self._shared_buffers = connection, shared_buffers
        self._moved = [0, 0]
        # The kernel wakes a waiting thread when all bytes are there, not for each piece. That needs a
        # blocking socket, which a socket with a timeout of Python is not.
        connection.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _SECONDS_BETWEEN_CHECKS, 0))
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._send_queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The error that has cut the channel, if one did. It refers to this object by its traceback.
        self._cause: weakref.ref[ExchangeError] | None = None
        self._sender: threading.Thread | None = None
        self._sent_codecs, self._received_codecs = _SentCodecs(), dict[bytes, MessageCodec]()
        self._newest = 0  # the latest step that a thread has waited for
        self._header: _Header | None = None  # of a later step than the thread that read it asked for
        # While a thread still waits on the descriptor, no other file may get its number. So it is closed with
        # this object.
        weakref.finalize(self, connection.close)

    @property
    def moved(self) -> int:
        """Return how many bytes have gone out and come in."""
        return sum(self._moved)

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the connection, which stays open as long as this object."""
        return self._connection.fileno()

    def send(self, manifest: Manifest, step: int, arrays: Sequence[Array], why_lost: WhyLost) -> None:
        """Send arrays.

        Raises:
            ExchangeError: The other end is gone or silent, or the channel has been cut.
        """
        with self._sending, self._cut_on_error(), self._exchange_span(manifest, step, "sent"):
            codec, unused = self._sent_codecs.of(manifest, step)
            pieces: list[memoryview] = []
            form, begin, size = IN_SHARED_MEMORY, 0, codec.footprint
            shared_buffer = (
                self._shared_buffers.reserve(size) if self._shared_buffers and codec.may_be_shared else None
            )
            if shared_buffer is not None:
                begin, memory = shared_buffer
                codec.copy_to(arrays, memory)
            else:
                form, buffers = codec.load(arrays)
                size, pieces = sum(map(len, buffers)), [buffer.data for buffer in buffers if len(buffer)]
                if form == WITH_MANIFEST:
                    text = manifest.written()
                    begin, pieces = len(text), [memoryview(text), *pieces]
            given_back = self._shared_buffers.given_back if self._shared_buffers else 0
            headers = [_Header(_MARK, mark, step, FORGET, 0, 0, given_back) for mark in unused]
            headers.append(_Header(_MARK, codec.mark, step, form, size, begin, given_back))
            self._write_all(
                [memoryview(b"".join(_HEADER.pack(*header) for header in headers)), *pieces], why_lost
            )

    def hand_over(
        self,
        manifest: Manifest,
        step: int,
        arrays: Sequence[Array],
        why_lost: WhyLost,
        on_error: Callable[[ExchangeError], None],
    ) -> None:
        """Queue arrays to be sent in the order of the calls; do not wait until they are sent.

        If the sending fails and so cuts the channel, `on_error` gets the error in the thread that sends.
        """
        if self.why_cut:
            raise ExchangeError(self.why_cut)
        self._send_queue.put((manifest, step, arrays, why_lost, on_error))
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, daemon=True)
            self._sender.start()

    def _send_all(self) -> None:
        while (message := self._send_queue.get()) is not None:
            *arguments, on_error = message
            try:
                self.send(*arguments)
            except ExchangeError as error:
                _log.warning("a message was not sent: %s", error)
                if self._cause is not None and self._cause() is error:
                    on_error(error)
                return

    def begin(self, step: int) -> None:
        """Record that a step has begun, which ends the wait for earlier steps."""
        self._newest = max(self._newest, step)

    def receive(self, manifest: Manifest, step: int, why_lost: WhyLost) -> list[Array]:
        """Receive arrays.

        Raises:
            ExchangeError: The other end is gone or silent, or sends something else.
            GivenUp: A later step has begun.
        """
        self.begin(step)
        with self._receiving, self._cut_on_error(), self._exchange_span(manifest, step, "received"):
            while True:
                header = self._next_header(step, why_lost)
                if header is None or header.step > step:
                    self._header = header
                    break
                if header.form == FORGET:
                    self._received_codecs.pop(header.manifest, None)
                    continue
                wanted = manifest if header.step == step else None
                arrays = self._read_arrays(header, self._codec_of(header, wanted, why_lost), why_lost)
                if wanted is not None:
                    return arrays
        raise GivenUp(f"step {step} was given up")

    def _read_arrays(self, header: _Header, codec: MessageCodec | None, why_lost: WhyLost) -> list[Array]:
        if codec is not None and not codec.may_have(header.form):
            raise ExchangeError(self._mismatch)
        if header.form == IN_SHARED_MEMORY:
            return self._read_shared_buffer(header, codec)
        if codec is None:
            self._skip(header.size, why_lost)
            return []
        receiving = codec.buffers(header.form)
        if header.size != sum(map(len, receiving.buffers)):
            raise ExchangeError(self._mismatch)
        for buffer in receiving.buffers:
            self._read_into(buffer, why_lost)
        return codec.received(receiving)

    def _skip(self, size: int, why_lost: WhyLost) -> None:
        """Read bytes that nobody needs, in pieces: the other end may name any size."""
        piece = np.empty(min(size, _SKIPPED_AT_ONCE), np.uint8)
        while size:
            self._read_into(piece[: min(size, len(piece))], why_lost)
            size -= min(size, len(piece))

    def _read_shared_buffer(self, header: _Header, codec: MessageCodec | None) -> list[Array]:
        memory = self._shared_buffers.view(header.begin, header.size) if self._shared_buffers else None
        if codec is None:
            return []
        if memory is None or header.size != codec.footprint:
            raise ExchangeError(self._mismatch)
        return codec.received(codec.buffers(IN_SHARED_MEMORY, memory))

    @property
    def _mismatch(self) -> str:
        return f"{self.name} does not send what this task expects: it runs another program"

    def cut(self, why: str) -> None:
        """Close the channel, which wakes the threads that wait here and at the other end."""
        self.why_cut = self.why_cut or why
        self._send_queue.put(None)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _cut_on_error(self) -> Any:
        """Cut the channel after a part of a message: nobody could tell where the next one begins."""
        if self.why_cut:
            raise ExchangeError(self.why_cut)
        try:
            yield
        except BaseException as error:
            if not self.why_cut and isinstance(error, ExchangeError):
                self._cause = weakref.ref(error)
            self.cut(str(error))
            raise

    def _exchange_span(
        self, manifest: Manifest, step: int, way: str
    ) -> contextlib.AbstractContextManager[Any]:
        """Name a message in the profiler's recordings of both tasks, which say who waited for whom."""
        other = self.name.partition(" ")[0]
        return span(EXCHANGE, message=manifest.name, step=step, way=way, other=other)

    def _codec_of(self, header: _Header, wanted: Manifest | None, why_lost: WhyLost) -> MessageCodec | None:
        """Return the codec of the message that follows; None if it is of no use.

        Of a step that was given up, that is a message which no later one refers to. One that others refer to
        comes with its manifest.
        """
        manifest = wanted
        if header.form == WITH_MANIFEST:
            if header.begin > _LONGEST_MANIFEST:
                raise ExchangeError(self._mismatch)
            text = np.empty(header.begin, np.uint8)
            self._read_into(text, why_lost)
            manifest = read_manifest_sent(text.tobytes(), header.manifest)
        if wanted is not None and wanted.mark != header.manifest:
            raise ExchangeError(self._mismatch)
        if manifest is not None and header.manifest not in self._received_codecs:
            self._received_codecs[header.manifest] = MessageCodec(manifest)
        return self._received_codecs.get(header.manifest)

    def _next_header(self, step: int, why_lost: WhyLost) -> _Header | None:
        """Return the next header; None if another thread waits for a later step meanwhile."""
        if self._header is not None:
            header, self._header = self._header, None
            return header
        data = np.empty(_HEADER.size, np.uint8)
        with span(WAITING):
            has_come = self._read_into(data, why_lost, unless=lambda: self._newest > step)
        if not has_come:
            return None
        header = _Header(*_HEADER.unpack(data.tobytes()))
        if header.mark != _MARK:
            raise ExchangeError(f"{self.name} does not use the protocol of this version of tfdist")
        if self._shared_buffers:
            self._shared_buffers.note(header.given_back)
        return header

    def _read_into(self, into: Array, why_lost: WhyLost, unless: Callable[[], bool] = lambda: False) -> bool:
        """Fill an array; return False if `unless` became true before the first byte came."""
        filled, check = 0, SilenceCheck(why_lost)
        while filled < len(into):
            try:
                count = self._connection.recv_into(into[filled:].data, 0, socket.MSG_WAITALL)
            except (BlockingIOError, InterruptedError):
                if not filled and unless():
                    return False
                check.ask()
                continue
            except OSError as error:
                raise ExchangeError(self._describe_loss(error)) from error
            if not count:
                closed = ConnectionResetError(errno.ECONNRESET, "it has closed the connection")
                raise ExchangeError(self._describe_loss(closed))
            filled += count
            self._moved[1] += count
            check.renew()
        return True

    def _write_all(self, pieces: list[memoryview], why_lost: WhyLost) -> None:
        check = SilenceCheck(why_lost)
        while pieces:
            try:
                count = self._connection.sendmsg(pieces[:_MAX_PIECES])
            except (BlockingIOError, InterruptedError):
                check.ask()
                continue
            except OSError as error:
                raise ExchangeError(self._describe_loss(error)) from error
            self._moved[0] += count
            check.renew()
            while pieces and count >= len(pieces[0]):
                count -= len(pieces.pop(0))
            if count:
                pieces[0] = pieces[0][count:]

    def _describe_loss(self, error: OSError) -> str:
        return self.why_cut or f"{self.name} is gone: {error.strerror}"


def broken(channels: Iterable[Channel], seconds: float) -> list[Channel]:
    """Wait until connections break, at most so many seconds; return their channels, but none cut here."""
    looking, by_descriptor = select.poll(), {channel.descriptor: channel for channel in channels}
    for descriptor, channel in by_descriptor.items():
        if not channel.why_cut:
            looking.register(descriptor, getattr(select, "POLLRDHUP", 0))
    return [
        by_descriptor[descriptor]
        for descriptor, _ in looking.poll(1000 * seconds)
        if not by_descriptor[descriptor].why_cut
    ]


class _SentCodecs:
    """The codecs of the messages that are sent, without those of functions that others have replaced."""

    def __init__(self) -> None:
        self._codecs: dict[bytes, tuple[int, MessageCodec]] = {}  # with the first step of their function
        self._last_steps: dict[int, int] = {}  # of each function, by its first step

    def of(self, manifest: Manifest, step: int) -> tuple[MessageCodec, list[bytes]]:
        """Return the codec of a manifest, and the marks of the manifests whose codecs are gone for it."""
        if manifest.mark not in self._codecs:
            self._codecs[manifest.mark] = step, MessageCodec(manifest)
        first, codec = self._codecs[manifest.mark]
        self._last_steps[first] = step
        if len(self._last_steps) <= _MOST_FUNCTIONS:
            return codec, []
        unused = min(self._last_steps, key=self._last_steps.__getitem__)
        del self._last_steps[unused]
        marks = [mark for mark, (began, _) in self._codecs.items() if began == unused]
        for mark in marks:
            del self._codecs[mark]
        return codec, marks


class SilenceCheck:
    """Ask, while no bytes move, whether the other end is still there."""

    def __init__(self, why_lost: WhyLost) -> None:
        self._why_lost = why_lost
        self._seconds = self._asked_at = 0.0

    def renew(self) -> None:
        """Reset the time: bytes have moved."""
        self._seconds = 0.0

    def ask(self) -> None:
        """Raise ExchangeError if the other end is lost."""
        now = time.monotonic()
        passed = now - self._asked_at if self._seconds else _SECONDS_BETWEEN_CHECKS
        self._seconds, self._asked_at = self._seconds + min(passed, _MOST_COUNTED_AT_ONCE), now
        why = self._why_lost(self._seconds)
        if why:
            raise ExchangeError(why)
