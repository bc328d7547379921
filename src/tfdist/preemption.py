"""Hear SIGTERM in time to save the work: so schedulers say that they will soon take the machine away."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from tfdist.errors import Preempted

__all__ = ["Notice", "hearing_notice"]


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
            raise Preempted("SIGTERM", "this task was told to end", remedy="Start it again: it goes on")


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
