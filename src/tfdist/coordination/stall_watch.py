"""Notice that this process answers others but makes no progress itself, and end it, so that it starts again.

The code that trains says what it is doing:

    with doing(Activity("saving a checkpoint")):
        ...

An inner activity interrupts the outer one, which begins again after it: only time without any progress
counts. If one activity lasts longer than the limit, a thread writes the stack of each Python thread to the
process's log, and ends the process with status 138.

Replicas that work in step all stand still if one of them is stuck. The stuck one is not in an exchange. It
ends itself first, since the others, which wait for it in an exchange, have a longer limit.
"""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar, cast

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.stall_limit import KEY, Activity, StallLimit, StallTimeout
from tfdist.errors import LOST, TaskLost
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import TaskStalled

_MOST_COUNTED_AT_ONCE = 5.0  # seconds; this process itself may have been stopped for a while
_SECONDS_BETWEEN_CHECKS = 1.0
_SECONDS_TO_SAY_WHY = 5.0  # on a disk that may be what does not answer
BETWEEN_STEPS = Activity("between two steps")
EXCHANGE = Activity("exchanging values with the other tasks", "exchange")
_Self = TypeVar("_Self", bound="StallWatch")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class StallWatch:
    """Watch the thread that enters the block, for as long as the block lasts.

    A watch within a watch does nothing: the outer one stays in force.

    Attributes:
        timeout: Seconds, `auto` or `off`.
    """

    def __init__(
        self,
        task: str,
        where: str,
        timeout: StallTimeout,
        *,
        has_peers: bool = False,
        at_stall: Callable[[TaskLost], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store what to watch.

        Args:
            task: The name of this task, for events.
            where: This task and its address, for the message.
            timeout: Seconds, `auto` or `off`.
            has_peers: Whether other processes take part in each step, for which this one may have to wait.
            at_stall: Called with the error, after the stacks are written, instead of ending this process.
            clock: Returns seconds.
        """
        self._task, self._where, self._has_peers, self._clock = task, where, has_peers, clock
        self.timeout = timeout
        self._limit = None if timeout == "off" else StallLimit(timeout)
        self._at_stall = at_stall or (lambda error: os._exit(error.exit_code))
        self._activity, self._began = Activity(""), clock()
        self._stretch = 0  # how many activities have begun
        self._seen, self._seen_at, self._seconds = 0, clock(), 0.0
        self._knows_exchanges = self._is_in_exchange = False
        self._is_over = threading.Event()
        self._owner = threading.get_ident()

    @classmethod
    def of(
        cls,
        cluster: ClusterConfig,
        timeout: StallTimeout,
        at_stall: Callable[[TaskLost], object] | None = None,
    ) -> "StallWatch":
        """Return the watch of this process, which is a task of a cluster, or alone."""
        task = cluster.task
        if task is None:
            return cls("this process", "this process", timeout, at_stall=at_stall)
        mirrored = () if cluster.ps else cluster.training().tasks()
        has_peers = task in mirrored and len(mirrored) > 1
        return cls(str(task), cluster.with_address(task), timeout, has_peers=has_peers, at_stall=at_stall)

    def __enter__(self: _Self) -> _Self:
        global _watch
        self._owner = threading.get_ident()
        if self._limit is not None and _watch is None:
            _watch = self
            threading.Thread(target=self._run, daemon=True, name="tfdist-stall-watch").start()
        return self

    def __exit__(self, *_: object) -> None:
        global _watch
        self._is_over.set()
        if _watch is self:
            _watch = None

    def begin(self, activity: Activity) -> Activity | None:
        """Begin an activity, which ends the one before; return that one, or None in a thread of others."""
        if threading.get_ident() != self._owner or self._limit is None:
            return None
        ended, now = self._activity, self._clock()
        self._limit.note(ended, now - self._began)
        self._activity, self._began, self._stretch = activity, now, self._stretch + 1
        return ended

    def exchange(self, *, is_in_one: bool) -> None:
        """Note that this process begins or ends an exchange with its peers."""
        self._knows_exchanges, self._is_in_exchange = True, is_in_one

    def check(self) -> TaskLost | None:
        """Return the error if this process is stuck; it counts only some seconds between two calls."""
        now, activity, stretch = self._clock(), self._activity, self._stretch
        passed, self._seen_at = min(now - self._seen_at, _MOST_COUNTED_AT_ONCE), now
        if stretch != self._seen or not activity.name or self._limit is None:
            self._seen, self._seconds = stretch, 0.0
            return None
        self._seconds += passed
        is_waiting = self._may_wait(activity)
        limit = self._limit.seconds(activity, is_waiting=is_waiting)
        if self._seconds < limit:
            return None
        what = f"{activity.name}, where it may wait for another task" if is_waiting else activity.name
        return stalled(self._where, what, self._seconds, limit)

    def _may_wait(self, activity: Activity) -> bool:
        if not self._has_peers:
            return False
        return self._is_in_exchange or (activity.kind in ("step", "exchange") and not self._knows_exchanges)

    def _run(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_CHECKS):
            error = self.check()
            if error is None or self._is_over.is_set():
                continue
            event = TaskStalled(task=self._task, doing=self._activity.name, seconds=self._seconds)
            end_stalled_process(str(error), event, functools.partial(self._at_stall, error))


_watch: StallWatch | None = None


class doing:  # a class, since each step enters it
    """Note what this process does in the block, or in each call of the decorated function."""

    def __init__(self, activity: Activity) -> None:
        self._activity, self._watch = activity, _watch
        self._before: Activity | None = None

    def __call__(self, function: _Function) -> _Function:
        """Return the function, each call of which is such a block."""

        @functools.wraps(function)
        def noted(*args: Any, **arguments: Any) -> Any:
            with doing(self._activity):
                return function(*args, **arguments)

        return cast(_Function, noted)

    def __enter__(self) -> None:
        if self._watch is not None:
            self._before = self._watch.begin(self._activity)

    def __exit__(self, *_: object) -> None:
        if self._watch is not None and self._before is not None:
            self._watch.begin(self._before)


def timeout_in_force() -> StallTimeout:
    """Return the timeout of the watch that is in force; `off` without one."""
    return "off" if _watch is None else _watch.timeout


class exchanging:  # a class, since each exchange enters it
    """Note that this process exchanges values with its peers in the block, where it waits for them."""

    def __init__(self) -> None:
        self._watch = _watch

    def __enter__(self) -> None:
        if self._watch is not None:
            self._watch.exchange(is_in_one=True)

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.exchange(is_in_one=False)


def stalled(where: str, activity: str, seconds: float, limit: float) -> TaskLost:
    """Return the error of a task that has been doing one thing for longer than the limit."""
    problem = f"is stuck: it has been {activity} for {seconds:.0f} s, and the limit ({KEY}) is {limit:.0f} s"
    remedy = "Its log shows the stack of each of its Python threads; start the cluster again"
    return TaskLost(where, problem, remedy=remedy)


def end_stalled_process(
    text: str, event: TaskStalled | None = None, end: Callable[[], object] = lambda: os._exit(LOST)
) -> None:
    """Write the stack of each Python thread and a text to the log, and end this process.

    Args:
        text: Why it ends, in one line.
        event: What to record about that.
        end: Called to end the process.
    """

    def say() -> None:
        try:
            print(_stacks(), file=sys.stderr)
        finally:
            print(f"tfdist: {text}", file=sys.stderr, flush=True)
            if event is not None:
                record(event)

    # Another thread writes: the disk of the log may be what this process waits for.
    try:
        saying = threading.Thread(target=say, daemon=True)
        saying.start()
        saying.join(_SECONDS_TO_SAY_WHY)
    finally:
        end()


def _stacks() -> str:
    """Return the stack of each Python thread; this opens no file, since the disk may not answer."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n\n".join(
        "\n".join((f"Thread {names.get(ident, ident)} (most recent call first):", *_calls(frame)))
        for ident, frame in frames
    )


def _calls(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        code = frame.f_code
        yield f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'
        frame = frame.f_back
