"""Know how fast a run goes: tell the launcher, and how long each task computes for a step."""

import time
from typing import Any

import numpy as np

from tfdist.cluster import ClusterConfig, Task
from tfdist.launcher import report_progress
from tfdist.loop import SECONDS, STEPS
from tfdist.stragglers import Stragglers

__all__ = ["Pace", "computing_tasks"]

_SECONDS_BETWEEN_REPORTS = 0.5


def computing_tasks(cluster: ClusterConfig) -> list[Task]:
    """Give the tasks that compute steps, in the order of their replicas."""
    roles = ("worker",) if cluster.ps else ("chief", "worker")
    return [each for each in cluster.tasks() if each.type in roles]


class Pace:
    """Know how far and how fast a run goes since it was begun, or begun again, at a step."""

    def __init__(self, cluster: ClusterConfig, batch_size: int, step: int, period: int) -> None:
        """Begin.

        Args:
            cluster: The cluster.
            batch_size: Examples of a step.
            step: The step to begin at.
            period: After how many steps the tasks are compared with each other, at the least.
        """
        self._tasks = computing_tasks(cluster)
        self._batch_size, self._period = batch_size, period
        self._told = self._asked = (time.monotonic(), step)
        self._cluster = cluster
        self._stragglers = Stragglers()
        self._compared_at = step
        self._table: Any = 0.0
        self._is_first = True
        self.loss: float | None = None

    def tell(self, step: int, total: int) -> None:
        """Report to the launcher, where this is its chief, but not too often."""
        if time.monotonic() - self._told[0] >= _SECONDS_BETWEEN_REPORTS or step == total:
            speed, self._told = self._speed(self._told, step)
            report_progress(step, total, examples_per_second=speed, loss=self.loss)

    def since_last_asked(self, step: int) -> float:
        """Give the examples per second since this was last called."""
        speed, self._asked = self._speed(self._asked, step)
        return speed

    def milliseconds(self, times: Any) -> dict[str, float]:
        """Give the time that each task computes for a step, without what it waits for others and for data.

        A task that has done none is left out.
        """
        if times is None:
            return {}
        # Of a task's replicas the slowest counts.
        each = np.asarray(times).reshape(max(len(self._tasks), 1), -1, 4)
        slowest = 1000 * np.max(each[:, :, SECONDS] / np.maximum(each[:, :, STEPS], 1), axis=1)
        names = [str(task) for task in self._tasks] or ["this process"]
        return {name: float(taken) for name, taken in zip(names, slowest, strict=True) if taken}

    def compare(self, step: int, times: Any) -> None:
        """Add the times up to a step; warn, after each period, of tasks that are much slower than the others.

        The first period is not counted: in it functions are traced, and memory is taken.
        """
        if times is None or len(self._tasks) < 2:
            return
        self._table = self._table + np.asarray(times)
        if step - self._compared_at < self._period:
            return
        if not self._is_first:
            taken = self.milliseconds(self._table)
            self._stragglers.judge(
                {
                    f"{task} at {self._cluster.address(task)}": taken[str(task)]
                    for task in self._tasks
                    if str(task) in taken
                }
            )
        self._compared_at, self._table, self._is_first = step, 0.0, False

    def _speed(self, since: tuple[float, int], step: int) -> tuple[float, tuple[float, int]]:
        now = time.monotonic()
        return (step - since[1]) * self._batch_size / max(now - since[0], 1e-9), (now, step)
