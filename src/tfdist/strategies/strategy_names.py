"""Name the strategies, and choose the one that `auto` stands for.

This module does not load TensorFlow, so commands start at once.
"""

from typing import Literal, get_args

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError, did_you_mean, shown

StrategyName = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]

OF_ONE_PROCESS = ("one_device", "mirrored")
OF_PS = ("parameter_server", "parameter_server_sync")


def strategy_name(strategy: str, cluster: ClusterConfig, *, devices: int = 1) -> StrategyName:
    """Return the name of a strategy; for auto, of the one that fits the cluster, or so many devices."""
    if strategy not in get_args(StrategyName):
        remedy = did_you_mean(strategy, get_args(StrategyName))
        raise ConfigError("strategy", "is unknown: " + shown(strategy), remedy=remedy)
    if strategy != "auto":
        return strategy  # type: ignore[return-value]
    return choose_strategy(cluster, devices=devices)[0]


def choose_strategy(cluster: ClusterConfig, *, devices: int) -> tuple[StrategyName, str]:
    """Return the strategy that fits a cluster and its devices, and the reason."""
    training = ClusterConfig() if cluster.is_evaluator else cluster
    workers = training.size("chief") + training.size("worker")
    if training.size("ps"):
        return "parameter_server", f"the cluster has {training.size('ps')} ps"
    if workers > 1:
        return "multi_worker_mirrored", f"the cluster has {workers} workers and no ps"
    if devices > 1:
        return "mirrored", f"one process with {devices} devices"
    return "one_device", "one process with one device"


def exchanges_tensors(name: StrategyName, cluster: ClusterConfig) -> bool:
    """Return whether a strategy sends tensors from task to task; not for an evaluator of a cluster."""
    return name not in OF_ONE_PROCESS and len(cluster.training().tasks()) > 1


def roles_started_alone(strategy: StrategyName) -> tuple[str, ...]:
    """Return the roles whose lost tasks are started again while the others continue."""
    return ("worker", "evaluator") if strategy == "parameter_server" else ("evaluator",)
