"""Wait for other tasks of a cluster: say for whom, how long and why, and give up in the end."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfdist.cluster import ClusterConfig, Task
from tfdist.errors import TaskLost
from tfdist.probing import why_silent

__all__ = ["Awaiting", "await_servers"]

_FIRST_TOLD = 5.0  # seconds: tasks that are started together load TensorFlow for about as long
_SECONDS_BETWEEN = 60.0  # at most
_SHARE_OF_WAIT = 0.1  # slept between two looks
_MOST_NAMED = 8
_MOST_AT_ONCE = 64
_log = logging.getLogger("tfdist")


class Awaiting:
    """Tell now and again who is awaited, and for how long; raise TaskLost when that is too long."""

    def __init__(self, where: str, cluster: ClusterConfig, timeout: float) -> None:
        self._where, self._cluster, self._timeout = where, cluster, timeout
        self._began = time.monotonic()
        self._next = min(_FIRST_TOLD, timeout)

    @property
    def seconds(self) -> float:
        """Give how long it has been waited."""
        return time.monotonic() - self._began

    @property
    def is_due(self) -> bool:
        """Say whether it is time to tell."""
        return self.seconds >= self._next

    def tell(self, missing: Mapping[Task, str]) -> None:
        """Say who is missing and why, or that it has been too long."""
        names = [f"{task} at {self._cluster.address(task)}: {why}" for task, why in missing.items()]
        listed = "; ".join(names[:_MOST_NAMED])
        if len(names) > _MOST_NAMED:
            listed += f"; and {len(names) - _MOST_NAMED} more"
        if self.seconds >= self._timeout:
            problem = f"waited {self._timeout:g} s for {listed}"
            raise TaskLost(self._where, problem, remedy="Start it, or see its log")
        _log.warning("waiting for %s (%.0f s of %g s)", listed, self.seconds, self._timeout)
        self._next = min(self.seconds + min(self._next, _SECONDS_BETWEEN), self._timeout)


def await_servers(
    where: str,
    cluster: ClusterConfig,
    tasks: Sequence[Task],
    timeout: float,
    *,
    least: int | None = None,
    wait: float = 0.0,
    unless: Callable[[], bool] = lambda: False,
) -> tuple[Task, ...]:
    """Wait until the TensorFlow servers of all these tasks answer at the same time; give those that do.

    Args:
        where: Who waits.
        cluster: The cluster.
        tasks: Who is awaited.
        timeout: Seconds until somebody who is missing is named and TaskLost raised.
        least: How many workers are enough when `wait` is over; all tasks where None.
        wait: Seconds that all of them are waited for.
        unless: Says that nobody needs to be awaited any more.
    """
    awaiting = Awaiting(where, cluster, timeout)
    with ThreadPoolExecutor(min(len(tasks), _MOST_AT_ONCE)) as pool:
        while True:
            reasons = pool.map(lambda task: why_silent(cluster.address(task)), tasks)
            missing = {task: why for task, why in zip(tasks, reasons, strict=True) if why}
            present = tuple(task for task in tasks if task not in missing)
            workers = sum(task.type == "worker" for task in present)
            is_only_workers = all(task.type == "worker" for task in missing)
            is_enough = least and awaiting.seconds >= wait and is_only_workers and workers >= least
            if not missing or is_enough or unless():
                return present
            if awaiting.is_due:
                awaiting.tell(missing)
            # Soon again at first: what is forked from what has loaded TensorFlow is there in an instant.
            at_most = max(0.1, len(tasks) / _MOST_AT_ONCE / 4)
            time.sleep(min(at_most, _SHARE_OF_WAIT * awaiting.seconds + 0.01))
