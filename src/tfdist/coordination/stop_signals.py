"""Handle SIGTERM, with which schedulers announce that they soon take the machine away, and save the work.

`stop_signals` names other signals that are handled alike. A process that is a whole run handles those of its
terminal too: the first Ctrl-C saves, a second one interrupts.
"""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from types import FrameType

from tfdist._utils.stop_signals_from_environment import stop_signals
from tfdist.coordination.background_threads import end_process, running_beside
from tfdist.errors import Preempted

_SECONDS_BETWEEN_POLLS = 0.1


class Notice:
    """The state of the stop signals in this process: whether one has come, and whether to react later.

    If there is nothing to save, the signal ends the process at once, by `Preempted`. Code that has
    something to save defers the end, and reads `is_received` when it can.

    SIGINT raises KeyboardInterrupt if there is nothing to save, and after another signal.
    """

    def __init__(self, also: Collection[signal.Signals] = ()) -> None:
        """Find which signals to handle; `also` names some besides the stop signals, such as SIGINT."""
        self.is_received = False
        self._is_deferred = False
        self._number = signal.SIGTERM  # the one that has come
        self.listens = (
            # Only the main thread may set a handler, and a process that ignores the signal does so on
            # purpose.
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
        )
        self.signals = stop_signals() if self.listens else ()
        wanted = also if self.listens else ()
        not_ignored = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        self.handled = (*self.signals, *not_ignored)

    def listen(self) -> None:
        """Install the handler, also in place of TensorFlow's, set when it connects mirrored workers."""
        for number in self.handled:
            signal.signal(number, self.handle)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep TensorFlow from consuming the signal unseen somewhere in the block.

        In the block, the signal ends this process at once, from a thread. There is nothing to save yet, and
        the main thread may be waiting for other tasks.
        """
        if not self.listens or sys.platform == "darwin":  # macOS cannot wait for a signal in a thread
            yield
            self.listen()
            return
        # Threads that start in the block inherit the blocked signal, and so leave it to the main thread.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self.signals)
        try:
            with running_beside(functools.partial(_end_on_signal, self.signals)):
                yield
        finally:
            self.listen()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Record the signal, but do not react to it, until the end of the block."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal: record it, and end unless that is deferred."""
        if number == signal.SIGINT and (self.is_received or not self._is_deferred):
            raise KeyboardInterrupt
        self.is_received, self._number = True, signal.Signals(number)
        if not self._is_deferred:
            self.raise_if_received()

    @property
    def name(self) -> str:
        """Return the name of the signal that has come; SIGTERM, where another task was told to end."""
        return self._number.name

    def raise_if_received(self) -> None:
        """Raise Preempted if the signal has come."""
        if self.is_received:
            raise _preempted(self.name)


def _preempted(name: str) -> Preempted:
    return Preempted(name, "this task was told to end", remedy="Start it again: it continues")


def _end_on_signal(signals: Collection[int], is_over: threading.Event) -> None:
    """Wait for a signal, which all other threads block, and end this process."""
    while not is_over.wait(_SECONDS_BETWEEN_POLLS):
        # With a timeout, Python takes a wait that lasted longer (the process was stopped) for a signal.
        if received := signal.sigtimedwait(signals, 0):
            end_process(_preempted(signal.Signals(received.si_signo).name))


@contextlib.contextmanager
def handling_stop_signals(also: Collection[signal.Signals] = ()) -> Iterator[Notice]:
    """Handle the stop signals, and others, in the main thread and unless the process ignores SIGTERM."""
    notice = Notice(also)
    before = {number: signal.getsignal(number) for number in notice.handled}
    notice.listen()
    try:
        yield notice
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_stop_signals(also: Collection[signal.Signals] = ()) -> None:
    """Ignore the stop signals, and others, until the process ends: its exit status is settled.

    Else one that comes while Python takes the process down, such as the launcher's after Slurm's, would give
    another status.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (*stop_signals(), *also):
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def own_handler_restored() -> Iterator[None]:
    """Restore this process's SIGTERM handler, which TensorFlow replaces when it connects mirrored workers.

    TensorFlow's handler only records the signal, for code that asks. Only SIGKILL could end a script that
    does not ask and waits in a collective.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
