"""Wait for other tasks of a cluster: report which, how long and why, and raise an error after the timeout."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.grpc_health_probe import why_silent
from tfdist.errors import TaskLost

START_TIMEOUT = 600.0  # seconds that other tasks may take to come up, unless the user says something else

_SECONDS_BEFORE_FIRST_REPORT = 5.0  # tasks that start together load TensorFlow for about as long
_SECONDS_BETWEEN_REPORTS = 60.0  # at most
_SHARE_OF_WAIT = 0.1  # slept between two checks
_MAX_NAMED = 8
_MAX_THREADS = 64
_log = logging.getLogger("tfdist")


class Awaiting:
    """Report from time to time which tasks are missing; raise TaskLost after the timeout."""

    def __init__(self, where: str, cluster: ClusterConfig, timeout: float) -> None:
        self._where, self._cluster, self._timeout = where, cluster, timeout
        self._began = time.monotonic()
        self._next = min(_SECONDS_BEFORE_FIRST_REPORT, timeout)

    @property
    def seconds(self) -> float:
        """Return how long the wait has lasted."""
        return time.monotonic() - self._began

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a report."""
        return self.seconds >= self._next

    def report(self, missing: Mapping[Task, str]) -> None:
        """Log which tasks are missing and why, or raise TaskLost after the timeout."""
        names = [f"{self._cluster.with_address(task)}: {why}" for task, why in missing.items()]
        listed = "; ".join(names[:_MAX_NAMED])
        if len(names) > _MAX_NAMED:
            listed += f"; and {len(names) - _MAX_NAMED} more"
        if self.seconds >= self._timeout:
            problem = f"waited {self._timeout:g} s for {listed}"
            raise TaskLost(self._where, problem, remedy="Start it, or see its log")
        _log.warning("waiting for %s (%.0f s of %g s)", listed, self.seconds, self._timeout)
        self._next = min(self.seconds + min(self._next, _SECONDS_BETWEEN_REPORTS), self._timeout)


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
    """Wait until the TensorFlow servers of all these tasks answer at the same time; return the tasks that do.

    Args:
        where: The function that waits, for messages.
        cluster: The cluster.
        tasks: The tasks to wait for.
        timeout: Seconds after which a TaskLost error names the missing tasks.
        least: How many workers are enough once `wait` is over; None for all tasks.
        wait: Seconds to wait for all tasks.
        unless: Returns True when the wait is no longer needed.
    """
    awaiting = Awaiting(where, cluster, timeout)
    with ThreadPoolExecutor(min(len(tasks), _MAX_THREADS)) as pool:
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
                awaiting.report(missing)
            # Check often at first: a process that is forked with TensorFlow loaded answers in an instant.
            longest_sleep = max(0.1, len(tasks) / _MAX_THREADS / 4)
            time.sleep(min(longest_sleep, _SHARE_OF_WAIT * awaiting.seconds + 0.01))
