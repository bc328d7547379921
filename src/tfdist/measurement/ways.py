"""Say in which ways a config is run, each worker with the same share of the machine, and run them."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from tfdist.cluster import ClusterConfig
from tfdist.config import Settings
from tfdist.errors import ConfigError
from tfdist.launcher import own_cores, own_gpus
from tfdist.measurement.records import Record, Sample
from tfdist.trial import try_out

__all__ = ["Bench", "Way", "alone", "of_workers", "run", "whole_machine"]

_ON_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Bench:
    """Hold what is measured, and how often.

    Attributes:
        settings: The config.
        cluster: Its cluster, which starts on this machine.
        changes: What was set in place of its values, as `--set` has it.
        steps: How many steps each worker is measured for, in each run.
        warmup: How many come before.
        rounds: How often everything is run, in turns.
        weak: Whether each worker has the same part of a batch, however many there are.
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
            remedy = "Say how many tasks: cluster: {worker: 2}"
            raise ConfigError(self.cluster.source.at(), problem, remedy=remedy)

    @property
    def strategy(self) -> str:
        """Name the strategy as `make_strategy` does, which has to load TensorFlow for it."""
        section = self.settings.config.strategy
        if section.name != "auto":
            return section.name
        if self.cluster.ps:
            return "parameter_server"
        if self.workers > 1:
            return "multi_worker_mirrored"
        devices = section.logical_devices or (0 if section.device == "cpu" else len(own_gpus()))
        return "mirrored" if devices > 1 else "one_device"

    @property
    def is_one_process(self) -> bool:
        """Say whether no cluster is started."""
        return self.strategy in ("one_device", "mirrored")

    @property
    def workers(self) -> int:
        """Count the tasks that compute in the config's own cluster."""
        chiefs = 0 if self.cluster.ps else self.cluster.size("chief")
        return max(1, chiefs + self.cluster.size("worker"))

    @property
    def replicas(self) -> int:
        """Count the parts that a batch of one process is cut into, where that is not a cluster."""
        devices = self.settings.config.strategy.logical_devices or len(own_gpus())
        return max(1, devices) if self.strategy == "mirrored" else 1

    @property
    def cores(self) -> int:
        """Count the cores that each worker has."""
        return max(1, len(own_cores()) // self.workers)

    def batch(self, workers: int) -> int:
        """Give the examples of a step with so many workers: of all together, or of one that goes alone."""
        whole = self.settings.config.data.batch_size
        if self.strategy == "parameter_server" or not self.weak:
            return whole
        return max(1, whole * workers // self.workers)

    def part(self, workers: int) -> int:
        """Give one worker's part of that, or one device's."""
        if self.strategy == "parameter_server":
            return self.batch(workers)
        return max(1, self.batch(workers) // (workers * self.replicas))


@dataclass(frozen=True)
class Way:
    """Say in which way a config is run.

    Attributes:
        name: What people call it.
        workers: How many tasks compute.
        roles: The cluster that is started; one worker where there is none, for the launcher to hold.
        changes: What is set in place of the config's values.
        cores: How many cores are shared out.
        gpus: How many GPUs are shared out.
        threads: Of each task.
        pin: Whether each task that computes is bound to its cores.
        env: Variables of the tasks.
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

    def changed(self, name: str, *changes: str, env: Mapping[str, str] | None = None) -> "Way":
        """Give another way, in which something more is set."""
        return replace(self, name=name, changes=(*self.changes, *changes), env={**self.env, **(env or {})})


def of_workers(bench: Bench, workers: int) -> Way:
    """Give the config's own strategy, on its own cluster or on one with fewer or more workers."""
    servers, section = bench.cluster.size("ps"), bench.settings.config.launch
    roles = {"chief": 1, "worker": workers, "ps": servers} if servers else {"worker": workers}
    said = {} if bench.is_one_process else roles
    changes = [f"cluster={json.dumps(said)}", f"strategy.name={bench.strategy}"]
    if bench.weak:
        changes.append(f"data.batch_size={bench.batch(workers)}")
    return Way(
        name=bench.strategy if bench.is_one_process else _counted(workers, "worker"),
        workers=workers,
        roles=roles,
        changes=tuple(changes),
        cores=min(len(own_cores()), workers * bench.cores),
        gpus=workers * max(1, len(own_gpus()) // bench.workers),
        threads=section.threads or bench.cores,
        # Fewer workers than the config has must not have the others' cores.
        pin=section.pin or (_ON_LINUX and section.threads is None),
        # The launcher says more to a cluster than one process alone is told, where 0 is TensorFlow's choice.
        env={"TF_NUM_INTEROP_THREADS": "0"} if bench.is_one_process else {},
    )


def alone(bench: Bench, batch: int, *, parts: int = 1) -> Way:
    """Give one process that computes alone, on one worker's share of the machine or on a part of that."""
    said = bench.settings.config.strategy
    kept = {key: getattr(said, key) for key in ("device", "precision", "memory_growth")}
    strategy = {"name": "one_device", **{key: value for key, value in kept.items() if value is not None}}
    changes = (
        "cluster={}",
        f"strategy={json.dumps(strategy)}",
        "communication={}",
        f"data.batch_size={batch}",
    )
    own = of_workers(bench, 1)
    cores, threads = (max(1, count // parts) for count in (bench.cores, own.threads))
    return replace(
        own,
        name="one process",
        roles={"worker": 1},
        changes=changes,
        cores=cores,
        gpus=1,
        threads=threads,
        env={"TF_NUM_INTEROP_THREADS": "0"},
    )


def whole_machine(bench: Bench) -> Way:
    """Give one process that has all the cores, and the config's own batch."""
    cores = len(own_cores())
    own = alone(bench, bench.batch(bench.workers))
    return replace(own, name=f"one process, all {cores} cores", cores=cores, threads=cores)


def run(bench: Bench, way: Way) -> Sample:
    """Start what a way says, and give what it measured."""
    roles = way.roles
    words = [sys.executable, "-m", "tfdist.bench", "--config", bench.settings.path]
    words += [f"--set={change}" for change in (*bench.changes, *way.changes)]
    words += [f"--steps={bench.steps}", f"--warmup={bench.warmup}", "--record"]
    trial = try_out(
        ClusterConfig.local(roles["worker"], roles.get("ps", 0), roles.get("chief")),
        words,
        env=way.env,
        threads=way.threads,
        cores=own_cores()[: way.cores],
        gpus=own_gpus()[: way.gpus],
        pin=way.pin,
        isolate=bench.settings.config.launch.isolate,
        loads_once=True,
    )
    return Sample([msgspec.convert(each, Record) for each in trial.found.values()], trial.outside)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
