"""Share the processor cores of this machine out among the tasks of a cluster."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.cluster import ClusterConfig, Task
from tfdist.errors import ConfigError

__all__ = ["Cores", "own_cores", "share_cores", "told"]

_LEAST_WAITING = 8


@dataclass(frozen=True)
class Cores:
    """Hold one task's share.

    Attributes:
        threads: How many threads one operation of TensorFlow's, or OpenMP, may use.
        waiting: How many operations may run or wait at the same time.
        pinned: The cores that the task is bound to; none means any.
    """

    threads: int
    waiting: int
    pinned: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """Give the variables that TensorFlow and OpenMP read, where a program sets nothing else."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.threads),
            "TF_NUM_INTEROP_THREADS": str(self.waiting),
            "OMP_NUM_THREADS": str(self.threads),
        }


def share_cores(
    cluster: ClusterConfig,
    *,
    cores: Sequence[int] | None = None,
    threads: int | None = None,
    pin: bool = False,
) -> dict[Task, Cores]:
    """Share cores out among the tasks of a cluster.

    Those that compute gradients (the workers, and a chief without parameter servers) get equal parts, since
    the slowest sets the pace. The others work while those wait: they get as many threads, and are not pinned.

    Args:
        cluster: The cluster.
        cores: The numbers of the cores; without, those that this process may use.
        threads: The threads of each task, in place of an equal part.
        pin: Whether to bind each task that computes to cores of its own.
    """
    if pin and sys.platform != "linux":
        raise ConfigError("pin", "only Linux binds a process to cores", remedy="Leave it out")
    cores = own_cores() if cores is None else cores
    computing = [task for task in cluster.tasks() if _computes(task, cluster)]
    part = max(1, len(cores) // max(1, len(computing)))
    width = threads or part
    # An operation that waits for another task holds one of these threads: with no more than there are cores,
    # the tasks of a small machine wait for each other for ever. Waiting takes no core, so there may be more.
    waiting = max(_LEAST_WAITING, width)
    shares = {task: Cores(width, waiting) for task in cluster.tasks()}
    if pin:
        for i, task in enumerate(computing):
            first = i * part % len(cores)
            shares[task] = Cores(width, waiting, tuple(cores[first : first + part]))
    return shares


def told(shares: Mapping[Task, Cores], cores: Sequence[int]) -> str:
    """Say in a line how many threads each task has and where it is pinned."""
    threads = {share.threads for share in shares.values()}
    each = ", ".join(_counted(count, "thread") for count in sorted(threads))
    pinned = [f"{task} on core {_numbers(share.pinned)}" for task, share in shares.items() if share.pinned]
    tasks = f"{_counted(len(shares), 'task')} on {_counted(len(cores), 'core')}, {each} each"
    return "; ".join([tasks, *pinned])


def own_cores() -> list[int]:
    """List the cores that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _computes(task: Task, cluster: ClusterConfig) -> bool:
    return task.type == "worker" or (task.type == "chief" and not cluster.size("ps"))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _numbers(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))
