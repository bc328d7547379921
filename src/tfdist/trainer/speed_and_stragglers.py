"""Measure the speed of a run, report it to the launcher, and warn of stragglers."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import Progressed
from tfdist.training.reports.speed_window import SECONDS_BETWEEN_REPORTS, SpeedWindow, TrainingClock
from tfdist.training.reports.task_speed import milliseconds_of_tasks

# Times the median of the others. Above the first, a task is a straggler; below the second, it no longer is.
_SLOW, _WELL = 2.0, 1.5
_log = logging.getLogger("tfdist")


class Throughput:
    """The progress and speed of a run since it started or resumed.

    Attributes:
        clock: The seconds of training, to which evaluations and checkpoints do not belong.
    """

    def __init__(self, cluster: ClusterConfig, batch_size: int, step: int, period: int) -> None:
        """Start to measure at a step.

        Args:
            cluster: The cluster.
            batch_size: The number of examples in a step.
            step: The step at which the run starts.
            period: The least number of steps between two comparisons of the tasks.
        """
        self._tasks = cluster.computing_tasks()
        self._batch_size, self._period = batch_size, period
        self._reported_at = time.monotonic()
        self.clock = TrainingClock()
        self._asked = self.clock.seconds(), step
        self._window: SpeedWindow | None = None  # None in the first steps, which TensorFlow traces
        self._cluster = cluster
        self._stragglers = Stragglers()
        self._compared_at = step
        self._table: Any = 0.0
        self._is_first = True
        self.loss: float | None = None
        self.accuracy: float | None = None

    def report(self, step: int, total: int) -> None:
        """Report the progress to the launcher, if this is its chief, at most twice a second."""
        now, seconds = time.monotonic(), self.clock.seconds()
        is_first = self._window is None
        if self._window is None:
            self._window, self._asked = SpeedWindow(seconds, step * self._batch_size), (seconds, step)
        if now - self._reported_at >= SECONDS_BETWEEN_REPORTS or step == total:
            self._reported_at = now
            speed = None if is_first else self._window.speed(seconds, step * self._batch_size)
            record(Progressed(step, total, speed, self.loss, self.accuracy))

    def since_last_asked(self, step: int) -> float:
        """Return the examples per second since the last call."""
        (asked_at, before), self._asked = self._asked, (self.clock.seconds(), step)
        return (step - before) * self._batch_size / max(self._asked[0] - asked_at, 1e-9)

    def compare(self, step: int, times: Any) -> None:
        """Add the times up to a step; after each period, warn of tasks much slower than the others.

        The first period does not count, because TensorFlow traces functions and allocates memory in it.
        """
        if times is None or len(self._tasks) < 2:
            return
        self._table = self._table + np.asarray(times)
        if step - self._compared_at < self._period:
            return
        if not self._is_first:
            taken = milliseconds_of_tasks(self._cluster, self._table)
            self._stragglers.judge(
                {
                    self._cluster.with_address(task): taken[str(task)]
                    for task in self._tasks
                    if str(task) in taken
                }
            )
        self._compared_at, self._table, self._is_first = step, 0.0, False


class Stragglers:
    """A monitor that logs when a task becomes a straggler, and when it has caught up."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def judge(self, milliseconds: Mapping[str, float]) -> None:
        """Compare the milliseconds that each task took for a step in one period."""
        for task, taken in milliseconds.items():
            others = [other for name, other in milliseconds.items() if name != task]
            if not others:
                return
            median = float(np.median(others))
            if task not in self._known and taken > _SLOW * median > 0:
                self._known.add(task)
                ratio = taken / median
                _log.warning(
                    "%s takes %s ms a step, %.1f times the median of the others (%s ms)",
                    task, _short(taken), ratio, _short(median),
                )  # fmt: skip
            elif task in self._known and taken < _WELL * median:
                self._known.remove(task)
                _log.info(
                    "%s keeps up again: %s ms a step, the others %s", task, _short(taken), _short(median)
                )


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"
