"""Describe scenarios, in which a config trains on this machine: each worker has the same share of it."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfdist._utils.readable_text import count
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus
from tfdist.strategies.strategy_names import OF_ONE_PROCESS
from tfdist.trainer.config import Settings
from tfdist.trainer.model_and_replica_sizes import Replicas

_ON_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Bench:
    """What is measured, and how often.

    Attributes:
        settings: The config.
        cluster: Its cluster, which starts on this machine.
        changes: Changes of the config's values, as `--set` takes them.
        steps: How many steps of each worker are measured in each run.
        warmup: How many steps precede them.
        rounds: How often everything is run, in turns.
        weak: Whether each worker has the same part of a batch, whatever the number of workers.
    """

    settings: Settings
    cluster: ClusterConfig
    changes: tuple[str, ...] = ()
    steps: int = 100
    warmup: int = 20
    rounds: int = 3
    weak: bool = False

    def __post_init__(self) -> None:
        if self.cluster and not self.cluster.is_on_ports_of_ours:
            problem = "gives addresses; bench measures clusters that it starts on this machine"
            remedy = "Write the number of tasks: cluster: {worker: 2}"
            raise ConfigError(self.cluster.source.at(), problem, remedy=remedy)

    @property
    def strategy(self) -> str:
        """Return the strategy's name as `make_strategy` chooses it, but without loading TensorFlow."""
        return Replicas.of(self.settings.config, self.cluster).strategy

    @property
    def is_one_process(self) -> bool:
        """Return whether the config starts no cluster."""
        return self.strategy in OF_ONE_PROCESS

    @property
    def workers(self) -> int:
        """Return the number of tasks that compute in the config's own cluster."""
        return max(1, len(self.cluster.computing_tasks()))

    @property
    def replicas(self) -> int:
        """Return the number of parts that one process cuts a batch into."""
        return Replicas.of(self.settings.config, self.cluster).per_process

    @property
    def cores(self) -> int:
        """Return the number of cores per worker."""
        return max(1, len(own_cores()) // self.workers)

    def batch(self, workers: int) -> int:
        """Return the examples of a step with this many workers: of all, or of one asynchronous worker."""
        whole = self.settings.config.data.batch_size
        if self.strategy == "parameter_server" or not self.weak:
            return whole
        return max(1, whole * workers // self.workers)

    def part(self, workers: int) -> int:
        """Return the examples of a step of one worker, or of one device."""
        if self.strategy == "parameter_server":
            return self.batch(workers)
        return max(1, self.batch(workers) // (workers * self.replicas))


@dataclass(frozen=True)
class Scenario:
    """One setup in which a config is run.

    Attributes:
        name: The name in tables.
        workers: How many tasks compute.
        roles: The tasks that the launcher starts; one worker if the config has no cluster.
        changes: Changes of the config's values.
        cores: How many cores are divided among the tasks.
        gpus: How many GPUs are divided among the tasks.
        threads: Threads per task.
        pin: Whether each task that computes is bound to its cores.
        env: Environment variables of the tasks.
    """

    name: str
    workers: int
    roles: Mapping[str, int]
    changes: tuple[str, ...]
    cores: int
    gpus: int
    threads: int
    pin: bool
    env: Mapping[str, str] = field(default_factory=dict)

    def changed(self, name: str, *changes: str, env: Mapping[str, str] | None = None) -> "Scenario":
        """Return another scenario with further changes."""
        return replace(self, name=name, changes=(*self.changes, *changes), env={**self.env, **(env or {})})


def of_workers(bench: Bench, workers: int) -> Scenario:
    """Return the scenario of the config on its own cluster, or with another number of workers."""
    servers, section = bench.cluster.size("ps"), bench.settings.config.launch
    roles = {"chief": 1, "worker": workers, "ps": servers} if servers else {"worker": workers}
    cluster = {} if bench.is_one_process else roles
    changes = [f"cluster={json.dumps(cluster)}", f"strategy.name={bench.strategy}"]
    if bench.weak:
        changes.append(f"data.batch_size={bench.batch(workers)}")
    return Scenario(
        name=bench.strategy if bench.is_one_process else count(workers, "worker"),
        workers=workers,
        roles=roles,
        changes=tuple(changes),
        cores=min(len(own_cores()), workers * bench.cores),
        gpus=workers * max(1, len(own_gpus()) // bench.workers),
        threads=section.threads or bench.cores,
        # A cluster with fewer workers must not use the other workers' cores.
        pin=section.pin or (_ON_LINUX and section.threads is None),
        # The launcher sets the number of threads for a cluster. One process alone uses TensorFlow's default,
        # which is 0.
        env={"TF_NUM_INTEROP_THREADS": "0"} if bench.is_one_process else {},
    )


def alone(bench: Bench, batch: int, *, parts: int = 1) -> Scenario:
    """Return the scenario of one process on one worker's share of the machine, or on a part of it."""
    section = bench.settings.config.strategy
    options = {key: getattr(section, key) for key in ("device", "precision", "memory_growth")}
    own = of_workers(bench, 1)
    # A worker of several computes on all GPUs of its share.
    gpus = 1 if bench.is_one_process or section.device == "cpu" else max(1, own.gpus // parts)
    name = "mirrored" if gpus > 1 else "one_device"
    strategy = {"name": name, **{key: value for key, value in options.items() if value is not None}}
    changes = (
        "cluster={}",
        f"strategy={json.dumps(strategy)}",
        "communication={}",
        f"data.batch_size={batch}",
    )
    cores, threads = (max(1, count // parts) for count in (bench.cores, own.threads))
    return replace(
        own,
        name="one process",
        roles={"worker": 1},
        changes=changes,
        cores=cores,
        gpus=gpus,
        threads=threads,
        env={"TF_NUM_INTEROP_THREADS": "0"},
    )


def whole_machine(bench: Bench) -> Scenario:
    """Return the scenario with one process that has all cores, and the config's own batch."""
    cores = len(own_cores())
    own = alone(bench, bench.batch(bench.workers))
    return replace(own, name=f"one process, all {cores} cores", cores=cores, threads=cores)
