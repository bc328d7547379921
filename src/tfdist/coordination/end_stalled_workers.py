"""Notice that a worker of parameter servers answers but does not end what the chief gave it, and end it.

The chief knows when each worker began its last execution. It calls a function in the worker, which writes the
worker's stacks to its log and ends it with status 138. Then the worker is lost as any other: the launcher, or
who else has started it, starts it again. A worker that does not react is killed by the launcher.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfdist.cluster.config import Task
from tfdist.coordination.calls_between_tasks import call, call_each, register
from tfdist.coordination.health_checks import answers
from tfdist.coordination.stall_limit import Activity, StallLimit, StallTimeout
from tfdist.coordination.stall_watch import end_stalled_process, stalled
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import TaskStalled
from tfdist.launcher.send_reports import report_silent

_NAME = "end_stalled_worker"
_SECONDS_TO_REACT = 10.0
_SECONDS_BETWEEN_CHECKS = 1.0
_DOING = Activity("at work on one execution (reading its data, or computing)", "step")
_log = logging.getLogger("tfdist")


@dataclass
class _Worker:
    """The counts of executions that a worker has begun and ended, and when the last one began.

    Attributes:
        is_first: Whether none has ended, or none since the worker had to skip data, which may take long.
    """

    begun: int = 0
    ended: int = 0
    began: float | None = None
    is_first: bool = True


class WorkerExecutions:
    """The executions that the workers have begun and ended, in one phase of a coordinator."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._checked_at = clock, clock()
        self._workers: defaultdict[int, _Worker] = defaultdict(_Worker)
        self._limits: dict[StallTimeout, StallLimit] = {}
        self._durations: list[float] = []

    def begin(self, index: int) -> None:
        """Note that a worker begins an execution; a thread of the coordinator calls this."""
        worker, now = self._workers[index], self._clock()
        if worker.began is not None:
            self._durations.append(now - worker.began)
        worker.begun, worker.began = worker.begun + 1, now

    def expect_long_reading(self, index: int) -> None:
        """Note that a worker skips data in its next execution; a thread of the coordinator calls this."""
        self._workers[index].is_first = True

    def end(self, index: int) -> None:
        """Note that the result of an execution of a worker has come."""
        worker = self._workers[index]
        worker.ended, worker.is_first = worker.ended + 1, False

    def forget(self) -> None:
        """Forget what has begun and will not end, once nothing is under way."""
        for worker in self._workers.values():
            worker.begun, worker.began = worker.ended, None

    def stuck(self, timeout: StallTimeout) -> Mapping[int, tuple[float, float]]:
        """Return, for each worker that is stuck, for how many seconds, and the limit; look once a second."""
        now = self._clock()
        if timeout == "off" or now - self._checked_at < _SECONDS_BETWEEN_CHECKS:
            return {}
        self._checked_at = now
        limit = self._limits.setdefault(timeout, StallLimit(timeout))
        while self._durations:
            limit.note(_DOING, self._durations.pop())
        found = {}
        for index, worker in list(self._workers.items()):
            most = limit.seconds(_DOING, is_first=worker.is_first)
            seconds = 0.0 if worker.began is None else now - worker.began
            if worker.begun > worker.ended and seconds >= most:
                found[index] = (seconds, most)
                worker.began = now  # end it later if it has not ended
        return found


def end_stalled_worker(task: Task, where: str, seconds: float, limit: float) -> None:
    """End a worker that is stuck, and say so.

    Args:
        task: The worker.
        where: The worker and its address, for the message.
        seconds: For how long it has been at work on one execution.
        limit: The limit of that.
    """
    error = stalled(where, _DOING.name, seconds, limit)
    _log.warning("%s", error)
    record(TaskStalled(task=str(task), doing=_DOING.name, seconds=seconds))
    text, address = str(error), where.rpartition(" ")[2]
    import tensorflow as tf  # here: what counts executions needs none

    call_each(lambda each: call(each, _NAME, tf.int64, text), [task], _SECONDS_TO_REACT)
    if answers(address) and not report_silent(str(task), seconds):
        _log.warning("%s does not end: end it by hand", where)


def let_chief_end_this_worker() -> None:
    """Register the function by which the chief ends this process if it is stuck."""
    register(_NAME, lambda text: end_stalled_process(text.decode()))
