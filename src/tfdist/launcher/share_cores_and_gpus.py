"""Divide the processor cores and the GPUs of this machine among the tasks of a cluster."""

import itertools
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tfdist._utils.readable_text import count
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import ConfigError

_MIN_INTEROP_THREADS = 8
_GPUS = "CUDA_VISIBLE_DEVICES"
SHARES_GPU = "TFDIST_SHARES_GPU"  # marks a task whose GPUs are those of another task too
_DRIVER = Path("/proc/driver/nvidia/gpus")
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Cores:
    """One task's share of the machine.

    Attributes:
        threads: How many threads one operation of TensorFlow, or OpenMP, may use.
        pinned: The cores that the task is bound to; empty for any.
        gpus: The GPUs that the task may see, as CUDA names them; None on a machine without GPUs.
        shares_gpus: Whether another task computes on the same GPUs; then each allocates memory as needed.
    """

    threads: int
    pinned: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    shares_gpus: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables that TensorFlow and OpenMP read unless a program sets its own values."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.threads),
            # An operation that waits for another task occupies one of these threads. With only as many as
            # cores, the tasks of a small machine may wait for each other without end. Waiting takes no core,
            # so more are allowed.
            "TF_NUM_INTEROP_THREADS": str(max(_MIN_INTEROP_THREADS, self.threads)),
            "OMP_NUM_THREADS": str(self.threads),
        }

    def visible(self) -> dict[str, str]:
        """Return the variables that limit the task to its GPUs."""
        seen = {} if self.gpus is None else {_GPUS: ",".join(self.gpus) or "-1"}
        return {**seen, "TF_FORCE_GPU_ALLOW_GROWTH": "true", SHARES_GPU: "1"} if self.shares_gpus else seen


def share_cores(
    cluster: ClusterConfig,
    *,
    here: Collection[Task] | None = None,
    cores: Sequence[int] | None = None,
    gpus: Sequence[str] | None = None,
    threads: int | None = None,
    pin: bool = False,
) -> dict[Task, Cores]:
    """Return each task's share of the cores and GPUs.

    Tasks that compute get equal parts, because the slowest determines the speed: the workers, tasks of
    other jobs, and a chief without such servers. The other tasks work while those wait, so they get as many
    threads, and are not pinned. They see no GPU, because TensorFlow would allocate all of its memory, used
    or not.

    Args:
        cluster: The cluster.
        here: The tasks that are on this machine; None for all.
        cores: The numbers of the cores; None for those that this process may use.
        gpus: The GPUs, as CUDA names them; None for those that this process may use.
        threads: The threads of each task, in place of an equal part.
        pin: Whether to bind each task that computes to its own cores.
    """
    if pin and sys.platform != "linux":
        raise ConfigError("pin", "only Linux binds a process to cores", remedy="Leave it out")
    cores = own_cores() if cores is None else cores
    gpus = own_gpus() if gpus is None else gpus
    here = cluster.tasks() if here is None else here
    computing = [task for task in cluster.computing_tasks() if task in here]
    part = max(1, len(cores) // max(1, len(computing)))
    width = threads or part
    shares = {task: Cores(width, gpus=() if gpus else None) for task in here}
    for index, task in enumerate(computing):
        if pin:
            shares[task] = replace(shares[task], pinned=_part(cores, index, part))
        if gpus:
            own = _part(gpus, index, max(1, len(gpus) // len(computing)))
            shares[task] = replace(shares[task], gpus=own, shares_gpus=len(gpus) < len(computing))
    return shares


def _part(items: Sequence[_Item], index: int, size: int) -> tuple[_Item, ...]:
    """Return the part with this index; start again at the first item if there are too few."""
    first = index * size % len(items)
    return tuple(items[first : first + size])


def describe_shares(shares: Mapping[Task, Cores], cores: Sequence[int]) -> str:
    """Return in one line how many threads each task has and where it is pinned."""
    threads = {share.threads for share in shares.values()}
    threads_per_task = ", ".join(count(number, "thread") for number in sorted(threads))
    pinned = [f"{task} on core {_join(share.pinned)}" for task, share in shares.items() if share.pinned]
    pinned += [f"{task} on GPU {_join(share.gpus)}" for task, share in shares.items() if share.gpus]
    tasks = f"{count(len(shares), 'task')} on {count(len(cores), 'core')}, {threads_per_task} each"
    return "; ".join([tasks, *pinned])


def own_cores() -> list[int]:
    """Return the cores that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_gpus() -> list[str]:
    """Return the GPUs that this process may use, without CUDA, which needs seconds to answer."""
    visible = os.environ.get(_GPUS)
    if visible is None:
        return [str(index) for index, _ in enumerate(_DRIVER.iterdir())] if _DRIVER.is_dir() else []
    named = [name.strip() for name in visible.split(",")]
    # CUDA uses the names before the first invalid one.
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), named))


def _join(items: Sequence[object]) -> str:
    return ",".join(map(str, items))
