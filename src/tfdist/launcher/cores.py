"""Share the processor cores and the GPUs of this machine out among the tasks of a cluster."""

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tfdist.cluster import ClusterConfig, Task
from tfdist.errors import ConfigError

__all__ = ["Cores", "own_cores", "own_gpus", "share_cores", "told"]

_LEAST_WAITING = 8
_GPUS = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
_Thing = TypeVar("_Thing")


@dataclass(frozen=True)
class Cores:
    """Hold one task's share.

    Attributes:
        threads: How many threads one operation of TensorFlow's, or OpenMP, may use.
        waiting: How many operations may run or wait at the same time.
        pinned: The cores that the task is bound to; none means any.
        gpus: The GPUs that the task may see, as CUDA names them; None on a machine without.
        shares_gpus: Whether another task computes on them too; each then takes memory as it needs it.
    """

    threads: int
    waiting: int
    pinned: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    shares_gpus: bool = False

    def environment(self) -> dict[str, str]:
        """Give the variables that TensorFlow and OpenMP read, where a program sets nothing else."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.threads),
            "TF_NUM_INTEROP_THREADS": str(self.waiting),
            "OMP_NUM_THREADS": str(self.threads),
        }

    def visible(self) -> dict[str, str]:
        """Give the variables that say which GPUs are there, a part of those that this process may use."""
        seen = {} if self.gpus is None else {_GPUS: ",".join(self.gpus) or "-1"}
        return {**seen, "TF_FORCE_GPU_ALLOW_GROWTH": "true"} if self.shares_gpus else seen


def share_cores(
    cluster: ClusterConfig,
    *,
    cores: Sequence[int] | None = None,
    gpus: Sequence[str] | None = None,
    threads: int | None = None,
    pin: bool = False,
) -> dict[Task, Cores]:
    """Share cores and GPUs out among the tasks of a cluster.

    Those that compute (the workers, those of other jobs, and a chief without such servers) get equal parts,
    since the slowest sets the pace. The others work while those wait: they get as many threads, and are not
    pinned. They see no GPU, of which TensorFlow would take all the memory, used or not.

    Args:
        cluster: The cluster.
        cores: The numbers of the cores; without, those that this process may use.
        gpus: The GPUs, as CUDA names them; without, those that this process may use.
        threads: The threads of each task, in place of an equal part.
        pin: Whether to bind each task that computes to cores of its own.
    """
    if pin and sys.platform != "linux":
        raise ConfigError("pin", "only Linux binds a process to cores", remedy="Leave it out")
    cores = own_cores() if cores is None else cores
    gpus = own_gpus() if gpus is None else gpus
    computing = [task for task in cluster.tasks() if _computes(task, cluster)]
    part = max(1, len(cores) // max(1, len(computing)))
    width = threads or part
    # An operation that waits for another task holds one of these threads: with no more than there are cores,
    # the tasks of a small machine wait for each other for ever. Waiting takes no core, so there may be more.
    waiting = max(_LEAST_WAITING, width)
    shares = {task: Cores(width, waiting, gpus=() if gpus else None) for task in cluster.tasks()}
    for i, task in enumerate(computing):
        if pin:
            shares[task] = replace(shares[task], pinned=_part(cores, i, part))
        if gpus:
            own = _part(gpus, i, max(1, len(gpus) // len(computing)))
            shares[task] = replace(shares[task], gpus=own, shares_gpus=len(gpus) < len(computing))
    return shares


def _part(things: Sequence[_Thing], i: int, size: int) -> tuple[_Thing, ...]:
    """Give the i-th part, from the beginning again where there are fewer things than that."""
    first = i * size % len(things)
    return tuple(things[first : first + size])


def told(shares: Mapping[Task, Cores], cores: Sequence[int]) -> str:
    """Say in a line how many threads each task has and where it is pinned."""
    threads = {share.threads for share in shares.values()}
    each = ", ".join(_counted(count, "thread") for count in sorted(threads))
    pinned = [f"{task} on core {_listed(share.pinned)}" for task, share in shares.items() if share.pinned]
    pinned += [f"{task} on GPU {_listed(share.gpus)}" for task, share in shares.items() if share.gpus]
    tasks = f"{_counted(len(shares), 'task')} on {_counted(len(cores), 'core')}, {each} each"
    return "; ".join([tasks, *pinned])


def own_cores() -> list[int]:
    """List the cores that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_gpus() -> list[str]:
    """List the GPUs that this process may use, without asking CUDA, which takes seconds to answer."""
    visible = os.environ.get(_GPUS)
    if visible is None:
        return [str(i) for i, _ in enumerate(_DRIVER.iterdir())] if _DRIVER.is_dir() else []
    named = [name.strip() for name in visible.split(",")]
    # CUDA heeds the names before the first that is none.
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), named))


def _computes(task: Task, cluster: ClusterConfig) -> bool:
    if task.type in ("ps", "evaluator"):
        return False
    return task.type != "chief" or not (cluster.ps or cluster.jobs)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _listed(things: Sequence[object]) -> str:
    return ",".join(map(str, things))
