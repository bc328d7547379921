"""Know how fast a run goes: tell the launcher, and give the time that each task computes for a step."""

import time
from typing import Any

import numpy as np

from tfdist.cluster import ClusterConfig
from tfdist.launcher import report_progress

__all__ = ["Pace"]

_SECONDS_BETWEEN_REPORTS = 0.5


class Pace:
    """Tell the launcher how far and how fast the run goes, where this is its chief."""

    def __init__(self, cluster: ClusterConfig, batch_size: int, step: int) -> None:
        roles = ("worker",) if cluster.ps else ("chief", "worker")
        self._tasks = [str(each) for each in cluster.tasks() if each.type in roles] or ["this process"]
        self._batch_size = batch_size
        self._told = self._asked = (time.monotonic(), step)
        self.loss: float | None = None

    def tell(self, step: int, total: int) -> None:
        """Report, but not too often."""
        if time.monotonic() - self._told[0] >= _SECONDS_BETWEEN_REPORTS or step == total:
            speed, self._told = self._speed(self._told, step)
            report_progress(step, total, examples_per_second=speed, loss=self.loss)

    def since_last_asked(self, step: int) -> float:
        """Give the examples per second since this was last called."""
        speed, self._asked = self._speed(self._asked, step)
        return speed

    def milliseconds(self, times: Any) -> dict[str, float]:
        """Give the time that each task computes for a step, without what it waits for others and for data."""
        if times is None:
            return {}
        # Of a task's replicas the slowest counts.
        each = np.asarray(times).reshape(len(self._tasks), -1, 2)
        slowest = 1000 * np.max(each[:, :, 0] / np.maximum(each[:, :, 1], 1), axis=1)
        return {
            f"milliseconds of a step/{task}": float(value)
            for task, value in zip(self._tasks, slowest, strict=True)
        }

    def _speed(self, since: tuple[float, int], step: int) -> tuple[float, tuple[float, int]]:
        now = time.monotonic()
        return (step - since[1]) * self._batch_size / max(now - since[0], 1e-9), (now, step)
