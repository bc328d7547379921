"""Compute from the measurements of the replicas how long each task computes for a step, and record it."""

from typing import Any

import numpy as np

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import TaskSpeed
from tfdist.training.runners.replica_stats import SECONDS, STEPS


def record_task_speed(cluster: ClusterConfig, step: int, times: Any) -> dict[str, float]:
    """Record each task's milliseconds for a step, which are returned, and its share of all steps."""
    milliseconds = milliseconds_of_tasks(cluster, times)
    if not milliseconds:
        return {}
    names = _names(cluster)
    steps = np.asarray(times).reshape(len(names), -1, np.shape(times)[-1])[:, :, STEPS].sum(axis=1)
    shares = {name: float(part) for name, part in zip(names, steps / max(steps.sum(), 1), strict=True)}
    record(TaskSpeed(step=step, milliseconds=milliseconds, shares=shares))
    return milliseconds


def milliseconds_of_tasks(cluster: ClusterConfig, times: Any) -> dict[str, float]:
    """Return the milliseconds that each task computes for a step; see `computing_seconds`."""
    return {name: 1000 * taken for name, taken in computing_seconds(cluster, times).items()}


def computing_seconds(cluster: ClusterConfig, times: Any) -> dict[str, float]:
    """Return the seconds that each task computes for a step, without its waits for other tasks and for data.

    The slowest replica of a task counts. The result leaves out a task that has done no step.
    """
    if times is None:
        return {}
    names = _names(cluster)
    table = np.asarray(times).reshape(len(names), -1, np.shape(times)[-1])
    slowest = np.max(table[:, :, SECONDS] / np.maximum(table[:, :, STEPS], 1), axis=1)
    return {name: float(seconds) for name, seconds in zip(names, slowest, strict=True) if seconds}


def _names(cluster: ClusterConfig) -> list[str]:
    return [str(task) for task in cluster.computing_tasks()] or ["this process"]
