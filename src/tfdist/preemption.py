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
            raise Preempted("SIGTERM", "this task was told to end", remedy="Start it again: it goes on")


@contextlib.contextmanager
def hearing_notice() -> Iterator[Notice]:
    """Hear the notice for as long as the block lasts, if this is the main thread and nobody ignores it."""
    notice = Notice()
    is_main = threading.current_thread() is threading.main_thread()  # others may set no handler
    before = signal.getsignal(signal.SIGTERM)
    if not is_main or before is signal.SIG_IGN:
        yield notice
        return
    signal.signal(signal.SIGTERM, notice.hear)
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, before)
