"""Hear SIGTERM in time to save the work: so schedulers say that they will soon take the machine away."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from tfdist.errors import Preempted

__all__ = ["Notice", "hearing_notice"]

_SECONDS_BETWEEN_LOOKS = 0.1


class Notice:
    """Know whether this process has been told to end.

    Where nothing is to be saved, that ends it at once, by `Preempted`. What has something to save defers it,
    and looks at `has_come` when it can.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._is_deferred = False
        self.listens = (
            # Only the main thread may set a handler, and who ignores the signal means it.
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
        )

    def listen(self) -> None:
        """Take the signal, also from TensorFlow, which takes it when it connects mirrored workers."""
        if self.listens:
            signal.signal(signal.SIGTERM, self.hear)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the signal from TensorFlow, which takes it somewhere in the block and tells nobody.

        It ends this process at once, from a thread: there is nothing to save yet, and the main thread may be
        waiting for others.
        """
        if not self.listens or sys.platform == "darwin":  # which cannot wait for a signal in a thread
            yield
            self.listen()
            return
        # Threads that begin in the block hold it back for ever, and so leave it to the main thread.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        is_over = threading.Event()
        threading.Thread(target=_end_when_told, args=(is_over,), daemon=True).start()
        try:
            yield
        finally:
            is_over.set()
            self.listen()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note that the notice has come, until the end of the block."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Take the signal; a handler."""
        self.has_come = True
        if not self._is_deferred:
            self.heed()

    def heed(self) -> None:
        """End, if the notice has come."""
        if self.has_come:
            raise _told()


def _told() -> Preempted:
    return Preempted("SIGTERM", "this task was told to end", remedy="Start it again: it goes on")


def _end_when_told(is_over: threading.Event) -> None:
    """Wait for the signal that all other threads hold back."""
    while not is_over.wait(_SECONDS_BETWEEN_LOOKS):
        # With a time to wait, Python takes a wait that outlasted it (the process was stopped) for a signal.
        if signal.sigtimedwait({signal.SIGTERM}, 0):
            error = _told()
            print(f"tfdist: {error}", file=sys.stderr, flush=True)
            logging.shutdown()
            os._exit(error.exit_code)


@contextlib.contextmanager
def hearing_notice() -> Iterator[Notice]:
    """Hear the notice for as long as the block lasts, if this is the main thread and nobody ignores it."""
    notice = Notice()
    before = signal.getsignal(signal.SIGTERM)
    notice.listen()
    try:
        yield notice
    finally:
        if notice.listens:
            signal.signal(signal.SIGTERM, before)
