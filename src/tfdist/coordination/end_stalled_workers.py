"""Notice that a worker of parameter servers answers but does not end what the chief gave it, and end it.

The chief knows when it sent each execution to a worker. It calls a function in the worker, which writes the
worker's stacks to its log and ends it with status 138. Then the worker is lost as any other: the launcher, or
who else has started it, starts it again. A worker that does not react is killed by the launcher.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tfdist.cluster.config import Task
from tfdist.coordination.calls_between_tasks import call, call_each, register
from tfdist.coordination.grpc_health_probe import answers
from tfdist.coordination.stall_limit import Activity, StallLimit, StallTimeout
from tfdist.coordination.stall_watch import end_stalled_process, stalled
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import TaskStalled
from tfdist.launcher.send_reports import report_silent

_NAME = "end_stalled_worker"
_SECONDS_TO_REACT = 10.0
_SECONDS_BETWEEN_CHECKS = 1.0
_MOST_COUNTED_AT_ONCE = 5.0  # the whole cluster may have been stopped for a while
_DURATIONS_UNTIL_CHECK = 1000
_DOING = Activity("at work on one execution (reading its data, or computing)", "step")
_log = logging.getLogger("tfdist")


@dataclass(eq=False)
class TimeAtWork:
    """The time that a worker is at work on one execution, each time that the execution is sent to a worker.

    Attributes:
        worker: The index of the worker.
        began: When it was sent.
        is_first: Whether the worker has ended none before, or has to skip data first, which may take long.
        seen: The seconds for which the chief has seen the worker at work on it.
        told_at: How many of these had passed when the worker was last told to end.
    """

    worker: int
    began: float
    is_first: bool
    seen: float = 0.0
    told_at: float = 0.0


class WorkerExecutions:
    """How long the workers' executions take, and how long one may take, in one phase of a coordinator."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._checked_at = clock, clock()
        self._have_ended_one: set[int] = set()
        self._skip_data: set[int] = set()
        self._limits: dict[StallTimeout, StallLimit] = {}
        self._durations: deque[float] = deque(maxlen=_DURATIONS_UNTIL_CHECK)

    def begin(self, index: int) -> TimeAtWork:
        """Return the time of an execution that a worker begins; a thread of the coordinator calls this."""
        is_first = index in self._skip_data or index not in self._have_ended_one
        self._skip_data.discard(index)
        return TimeAtWork(index, self._clock(), is_first)

    def expect_long_reading(self, index: int) -> None:
        """Note that a worker skips data in its next execution; a thread of the coordinator calls this."""
        self._skip_data.add(index)

    def end(self, ended: TimeAtWork) -> None:
        """Note that the result of an execution has come.

        It may have come while the chief did something else, so what counts is how long the chief has seen it.
        """
        self._have_ended_one.add(ended.worker)
        self._durations.append(ended.seen)

    def stuck(
        self, at_work: Iterable[TimeAtWork], timeout: StallTimeout
    ) -> Mapping[int, tuple[float, float]]:
        """Return, for each worker that is stuck, for how many seconds, and the limit; look once a second.

        Args:
            at_work: The times of the executions that workers are at work on.
            timeout: The limit; `auto` derives it from the executions that have ended.
        """
        now = self._clock()
        passed = now - self._checked_at
        if timeout == "off" or passed < _SECONDS_BETWEEN_CHECKS:
            return {}
        self._checked_at = now
        limit = self._limits.setdefault(timeout, StallLimit(timeout))
        while self._durations:
            limit.note(_DOING, self._durations.pop())
        found = {}
        for each in at_work:
            most = limit.seconds(_DOING, is_first=each.is_first)
            each.seen += min(passed, now - each.began, _MOST_COUNTED_AT_ONCE)
            if each.seen - each.told_at >= most:
                found[each.worker] = (each.seen - each.told_at, most)
                each.told_at = each.seen  # end the worker later if it has not ended
        return found


def end_stalled_worker(task: Task, where: str, seconds: float, limit: float) -> None:
    """End a worker that is stuck, and say so; do nothing if it does not answer, since it is lost then.

    Args:
        task: The worker.
        where: The worker and its address, for the message.
        seconds: For how long it has been at work on one execution.
        limit: The limit of that.
    """
    address = where.rpartition(" ")[2]
    if not answers(address):
        return
    error = stalled(where, _DOING.name, seconds, limit)
    _log.warning("%s", error)
    record(TaskStalled(task=str(task), doing=_DOING.name, seconds=seconds))
    import tensorflow as tf  # here: what counts executions needs none

    call_each(lambda each: call(each, _NAME, tf.int64, str(error)), [task], _SECONDS_TO_REACT)
    if answers(address) and not report_silent(str(task), seconds):
        _log.warning("%s does not end: end it by hand", where)


def let_chief_end_this_worker() -> None:
    """Register the function by which the chief ends this process if it is stuck."""
    register(_NAME, lambda text: end_stalled_process(text.decode()))
