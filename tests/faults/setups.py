"""The clusters that faults are inflicted on, one for each strategy, and the small run that they train."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from counting import RATE

__all__ = ["EVERY", "PER_CALL", "SETUPS", "SILENCE", "Setup", "config"]

RESTARTS = 9  # by the launcher, and as many again with each new checkpoint: more than faults come in between


class Setup(NamedTuple):
    """Describe a cluster.

    Attributes:
        victims: Who may be hit; `launcher` is the command itself.
        savers: Who of those saves the work when told to end.
        alone: Who of them comes back alone, while the others go on.
        replicas: How many there are.
        cluster: How many tasks of each type.
        options: Of the strategy.
    """

    victims: tuple[str, ...]
    savers: tuple[str, ...] = ("launcher",)
    alone: tuple[str, ...] = ()
    replicas: int = 1
    cluster: Mapping[str, int] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def tasks(self) -> set[str]:
        """Return the names of all tasks."""
        return {f"{kind}:{number}" for kind, count in self.cluster.items() for number in range(count)}


_SERVED = ("chief:0", "worker:0", "worker:1", "ps:0", "launcher")
SETUPS = {
    "one_device": Setup(("launcher",)),
    "mirrored": Setup(("launcher",), replicas=2, options={"logical_devices": 2}),
    "multi_worker_mirrored": Setup(
        ("worker:0", "worker:1", "evaluator:0", "launcher"),
        savers=("worker:0", "worker:1", "launcher"),
        alone=("evaluator:0",),
        replicas=2,
        cluster={"worker": 2, "evaluator": 1},
    ),
    "parameter_server": Setup(
        _SERVED,
        savers=("chief:0", "launcher"),
        alone=("worker:0", "worker:1"),
        cluster={"chief": 1, "worker": 2, "ps": 1},
    ),
    "parameter_server_sync": Setup(
        _SERVED, savers=("chief:0", "launcher"), replicas=2, cluster={"chief": 1, "worker": 2, "ps": 2}
    ),
}
SILENCE = 10.0  # seconds after which a task counts as lost
IN_BACKGROUND = ("mirrored", "parameter_server")  # they train while they write checkpoints
PER_CALL, EVERY = 5, 20  # steps: of a call, and from a checkpoint to the next


def config(name: str, steps: int = 600, **changes: Any) -> dict[str, Any]:
    """Return a config: so many steps, in calls of five, and a checkpoint at every twentieth."""
    setup = SETUPS[name]
    of_cluster = {"cluster": dict(setup.cluster), "launch": {"threads": 1, "restarts": RESTARTS}}
    return {
        **(of_cluster if setup.cluster else {}),
        "strategy": {"name": name, **setup.options},
        "data": {"name": "digits", "batch_size": 32},
        "model": {"name": "counting:build"},
        "train": {"steps": steps, "optimizer": "sgd", "learning_rate": RATE, "steps_per_execution": PER_CALL},
        "evaluation": {"batches": 2},
        "checkpoint": {"every": EVERY, "background": name in IN_BACKGROUND},
        "watch": {"heartbeat_timeout": SILENCE},
        **changes,
    }
