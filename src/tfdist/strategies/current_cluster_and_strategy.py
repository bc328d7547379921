"""Store the cluster and the strategy of this process, which has one of each until it ends."""

from typing import Any

from tfdist.cluster.config import ClusterConfig

_cluster: ClusterConfig | None = None
_strategy: Any = None
_name = ""


def remember(cluster: ClusterConfig, strategy: Any, name: str) -> None:
    """Store the cluster and the strategy that this process trains with, and the name of the strategy."""
    global _cluster, _strategy, _name
    _cluster, _strategy, _name = cluster, strategy, name


def made_with(strategy: Any) -> tuple[ClusterConfig, str]:
    """Return the cluster and the name of a strategy; of one of the user's own, no cluster, and its class."""
    if strategy is _strategy and _cluster is not None:
        return _cluster, _name
    return ClusterConfig(), type(strategy).__name__


def current_strategy() -> Any:
    """Return the strategy that was made last in this process; None if there is none."""
    return _strategy


def is_chief_of(strategy: Any) -> bool:
    """Return whether this process is the one that writes files where a strategy trains."""
    return bool(strategy.extended.should_checkpoint)


def is_chief() -> bool:
    """Return whether this process is the one that writes files and prints results.

    That is the chief of a cluster, worker 0 of a cluster without a chief, or a process without a cluster.
    This function does not load TensorFlow. Before a strategy is made, it reads the cluster from the
    environment.
    """
    cluster = ClusterConfig.from_environment() if _cluster is None else _cluster
    return cluster.is_chief and not cluster.is_evaluator
