"""Describe a cluster: its tasks, their addresses, and the task that this process is.

    cluster = ClusterConfig(chief=["a:2222"], worker=["b:2222", "c:2222"], ps=["d:2222"])
    cluster.with_task("worker", 1).tf_config_json()

Only `cluster_spec()` and `resolver()` load TensorFlow, because they return its objects.
"""

import copy
import functools
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tfdist._utils.read_yaml_and_json import Document, Source, decode, read_yaml_file
from tfdist.cluster.addresses_and_free_ports import LocalPorts, split_address
from tfdist.cluster.roles_and_task_counts import ROLES, TaskCounts, stated_task_counts
from tfdist.cluster.schedulers import PRECEDENCE
from tfdist.cluster.schedulers.open_mpi import OpenMPI
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler
from tfdist.cluster.schedulers.slurm import Slurm
from tfdist.cluster.schedulers.tf_config_and_vertex import TfConfig
from tfdist.cluster.validation import (
    check_cluster,
    check_name,
    check_role,
    check_same_task_counts,
    check_task,
    checked_addresses,
    checked_counts,
    checked_jobs,
)
from tfdist.errors import ConfigError, is_near, shown

if TYPE_CHECKING:
    import tensorflow as tf

_log = logging.getLogger("tfdist")


class Task(NamedTuple):
    """One task of a cluster: its role, or other job, and its index there."""

    type: str
    index: int  # type: ignore[assignment]  # TensorFlow's name for it; it hides tuple.index()

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @property
    def device(self) -> str:
        """Return TensorFlow's name of the task, as a place for operations, where it chooses CPU or GPU."""
        return f"/job:{self.type}/replica:0/task:{self.index}"

    @property
    def cpu(self) -> str:
        """Return TensorFlow's name of the task's CPU."""
        return f"{self.device}/device:CPU:0"

    @classmethod
    def parse(cls, text: str) -> "Task":
        """Parse `worker:1`; a chief or an evaluator needs no index."""
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(?::([0-9]{1,9}))?", text)
        if not match or (match[2] is None and match[1] not in ("chief", "evaluator")):
            raise ConfigError("task", expected="a role and an index such as worker:1", received=shown(text))
        check_name(match[1], "task")
        return cls(match[1], int(match[2] or 0))


_Alone = Annotated[int, Meta(ge=0, le=1)] | tuple[str, ...] | None
_Many = Annotated[int, Meta(ge=0, le=1000)] | tuple[str, ...] | None


class ClusterSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tasks of the cluster: the addresses (host:port) of each role, or its number of tasks."""

    chief: Annotated[_Alone, Meta(description="Coordinates and writes; 1 by default with a ps.")] = None
    worker: Annotated[_Many, Meta(description="Compute. Without a chief, worker 0 leads.")] = None
    ps: Annotated[_Many, Meta(description="Store the variables, in parameter-server training.")] = None
    evaluator: Annotated[_Alone, Meta(description="Evaluates checkpoints beside the training.")] = None
    jobs: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=1000)] | tuple[str, ...]],
        Meta(description="Jobs of any other name, which serve a chief that calls tfdist.connect."),
    ] = {}
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="The first port, if a scheduler names only hosts."),
    ] = None

    def roles(self, source: Source) -> dict[str, int | tuple[str, ...]]:
        """Return the addresses or the number of tasks of each role and job that the section names."""
        values = {role: value for role in ROLES if (value := getattr(self, role)) is not None}
        for role in self.jobs:
            if role in values:
                problem = f"{role} is also at {source.at(role)}"
                raise ConfigError(source.at("jobs", role), problem, remedy="Write it once")
        return {**values, **self.jobs}


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The addresses of a cluster's tasks by role, and the task that this process is.

    A cluster without any task means a single process; it is false in a condition.

    Attributes:
        chief: The address of the chief (also called coordinator or master), if there is one.
        worker: The addresses of the workers.
        ps: The addresses of the parameter servers.
        evaluator: The address of the evaluator, which is outside the training cluster.
        jobs: The addresses of jobs of any other name, on which a chief computes (see `tfdist.connect`). The
            argument is a mapping, the attribute is a tuple of sorted pairs.
        task: The task that this process is, or None if it is none of them.
        source: The place that this was read from, for messages.
    """

    chief: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()
    evaluator: tuple[str, ...] = ()
    jobs: Mapping[str, Sequence[str]] | tuple[tuple[str, tuple[str, ...]], ...] = ()
    task: Task | None = None
    source: Source = field(default=Source("ClusterConfig"), compare=False, repr=False)
    _task_source: Source | None = field(default=None, compare=False, repr=False)
    _ports: LocalPorts | None = field(default=None, compare=False, repr=False)
    _addresses: dict[str, tuple[str, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        addresses = {role: checked_addresses(getattr(self, role), role, self.source) for role in ROLES}
        for role in ROLES:  # a frozen dataclass allows no plain assignment
            object.__setattr__(self, role, addresses[role])
        addresses |= checked_jobs(self.jobs, self.source)
        object.__setattr__(self, "_addresses", addresses)
        object.__setattr__(self, "jobs", tuple(job for job in addresses.items() if job[0] not in ROLES))
        check_cluster(addresses, self.source)
        if self.task is not None:
            if not isinstance(self.task, tuple) or len(self.task) != 2:
                raise ConfigError(self._at_task(), expected="a role and an index", received=shown(self.task))
            check_task(*self.task, addresses, self.source, self._at_task())
            object.__setattr__(self, "task", Task(*self.task))

    # -- asking --

    def __bool__(self) -> bool:
        return any(self._addresses.values())

    def size(self, role: str) -> int:
        """Return the number of tasks of a role or of another job."""
        return len(self._role(role))

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of tasks of each role and other job that has some."""
        return {role: len(addresses) for role, addresses in self._addresses.items() if addresses}

    def tasks(self) -> tuple[Task, ...]:
        """Return all tasks: chief, workers, parameter servers, evaluator, and those of other jobs."""
        return tuple(
            Task(role, index)
            for role, addresses in self._addresses.items()
            for index in range(len(addresses))
        )

    def computing_tasks(self) -> tuple[Task, ...]:
        """List the tasks that compute steps: of ps tasks and other jobs, the chief only hands work out."""
        spared = ("ps", "evaluator", *(("chief",) if self.ps or self.jobs else ()))
        return tuple(task for task in self.tasks() if task.type not in spared)

    def address(self, task: tuple[str, int]) -> str:
        """Return the address of a task."""
        type_, index = self._own(Task(*task))
        if not self.size(type_):
            raise ConfigError(self.source.at(type_), "has no address in this cluster")
        return self._role(type_)[index]

    def with_address(self, task: Task) -> str:
        """Return the name of a task, with its address if it has one: an evaluator may have none."""
        return f"{task} at {self.address(task)}" if self.size(task.type) else str(task)

    @property
    def is_chief(self) -> bool:
        """Return whether this process writes checkpoints, summaries and exports.

        It does, by TensorFlow's rule, if it is the chief, worker 0 of a cluster without a chief, the
        evaluator (the only task of its own cluster), or a single process.
        """
        return not self or self.is_evaluator or self.task == self.lead

    @property
    def is_evaluator(self) -> bool:
        """Return whether this process is the evaluator."""
        return self.task is not None and self.task.type == "evaluator"

    @property
    def lead(self) -> Task:
        """Return the task that leads the others: the chief, or worker 0 if there is no chief."""
        return Task("chief" if self.chief else "worker", 0)

    @property
    def serves(self) -> bool:
        """Return whether this process must call `tfdist.serve`.

        A parameter server must, and so must the workers beside it and the tasks of other jobs.
        """
        if self.task is None:
            return False
        return self.task.type not in ROLES or (bool(self.ps) and self.task.type in ("ps", "worker"))

    @property
    def is_on_ports_of_ours(self) -> bool:
        """Return whether `local` chose the addresses, for a cluster that starts on this machine."""
        return self._ports is not None

    # -- changing --

    def with_task(self, task: str | tuple[str, int], index: int = 0) -> "ClusterConfig":
        """Return the same cluster with another of its tasks as this process."""
        source = Source("with_task")
        task = Task(task, index) if isinstance(task, str) else Task(*task)
        check_task(*task, self._addresses, self.source, source.at())
        # A copy, because a new object would check all addresses again, for each task in a loop over tasks.
        other = copy.copy(self)
        other.__dict__.pop("_training", None)
        object.__setattr__(other, "task", task)
        object.__setattr__(other, "_task_source", source)
        return other

    def training(self) -> "ClusterConfig":
        """Return the cluster without its evaluator, as the training tasks see it.

        TensorFlow's servers wait for every task of their cluster, and the evaluator runs no server.
        """
        return self._training

    @functools.cached_property
    def _training(self) -> "ClusterConfig":
        return replace(self, evaluator=()) if self.evaluator else self

    def of(self, tasks: Iterable[Task]) -> "ClusterConfig":
        """Return the cluster of these tasks alone, with new indices that start at 0."""
        kept = {role: [task for task in sorted(tasks) if task.type == role] for role in self._addresses}
        roles = _arguments({role: tuple(map(self.address, members)) for role, members in kept.items()})
        task = self.task
        if task is not None:
            task = Task(task.type, kept[task.type].index(task))
        return replace(self, **roles, task=task)

    # -- converting --

    def tf_config(self, task_type: str | None = None, index: int = 0) -> dict[str, Any]:
        """Return the TF_CONFIG of a task (without arguments: of this process) as a dict.

        Only the evaluator's own TF_CONFIG lists the evaluator: see `training`.
        """
        config: dict[str, Any] = json.loads(self.tf_config_json(task_type, index))
        return config

    def tf_config_json(self, task_type: str | None = None, index: int = 0) -> str:
        """Return the TF_CONFIG of a task (without arguments: of this process) as JSON on one line."""
        task = self.task if task_type is None else self._own(Task(task_type, index))
        shown_to = self if task is not None and task.type == "evaluator" else self.training()
        if not shown_to:
            return "{}"
        cluster = shown_to._json
        if task is None:
            return f'{{"cluster": {cluster}}}'
        return f'{{"cluster": {cluster}, "task": {json.dumps({"type": task.type, "index": task.index})}}}'

    @functools.cached_property
    def _json(self) -> str:
        """The addresses as JSON, cached: they are the same in the TF_CONFIG of each task."""
        return json.dumps({role: addresses for role, addresses in self._addresses.items() if addresses})

    def cluster_spec(self) -> "tf.train.ClusterSpec":
        """Return TensorFlow's object for the training cluster."""
        import tensorflow as tf

        return tf.train.ClusterSpec(self.training().tf_config().get("cluster", {}))

    def resolver(self) -> "tf.distribute.cluster_resolver.ClusterResolver":
        """Return TensorFlow's resolver for this process in the training cluster."""
        import tensorflow as tf

        task_type, task_id = self.task or (None, None)
        is_called = self.task in self.training().tasks()
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            self.cluster_spec(),
            master=self.address(self.task) if self.task and is_called else "",
            task_type=task_type,
            task_id=task_id,
            rpc_layer="grpc",
        )

    # -- reading --

    @classmethod
    def local(
        cls,
        workers: int = 1,
        ps: int = 0,
        chief: int | None = None,
        evaluator: int = 0,
        jobs: Mapping[str, int] | None = None,
    ) -> "ClusterConfig":
        """Make a cluster on this machine, on free ports that are reserved while the object lives.

        By default, a cluster with parameter servers or other jobs also gets a chief, which coordinates them.
        """
        counts = {"worker": workers, "ps": ps, "evaluator": evaluator, **(jobs or {})}
        counts = _with_chief(counts) if chief is None else {"chief": chief, **counts}
        return cls._local(counts, Source("ClusterConfig.local"))

    @classmethod
    def of_addresses(cls, addresses: Mapping[Task, str]) -> "ClusterConfig":
        """Make a cluster of tasks with these addresses; the tasks of each role come in their order."""
        roles: dict[str, list[str]] = {}
        for task, address in addresses.items():
            roles.setdefault(task.type, []).append(address)
        return cls(**_arguments(roles))

    @classmethod
    def from_tf_config(cls, text: str | bytes | None = None) -> "ClusterConfig":
        """Read a TF_CONFIG; by default, this process's environment variable."""
        if text is None:
            text = os.environ.get("TF_CONFIG", "")
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        if not isinstance(text, str):
            remedy = "Convert it by json.dumps"
            raise ConfigError("TF_CONFIG", expected="JSON text", received=shown(text), remedy=remedy)
        tf_config = TfConfig({"TF_CONFIG": text})
        return cls._from_claim(tf_config.claim()) if tf_config.present else cls(source=Source("TF_CONFIG"))

    @classmethod
    def from_environment(
        cls,
        sizes: Mapping[str, int] | None = None,
        *,
        port: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ClusterConfig":
        """Read the cluster from the variables of the scheduler that started this process.

        tfdist uses the first of these that is present: TF_CONFIG, Vertex AI, SageMaker, Kubernetes, Open MPI,
        Slurm, SkyPilot. A later one that is also present must agree on the number of tasks. If none is
        present, this is a single process.

        Args:
            sizes: The number of tasks of each role, for schedulers that know only hosts and ranks. By default
                TFDIST_ROLES has them, such as chief=1,ps=1,worker=2; without it, every task is a worker.
            port: The first port, for schedulers that know only hosts.
            environ: The variables to read instead of `os.environ`.
        """
        wanted = None if sizes is None else TaskCounts(checked_counts(sizes, Source("sizes")), "sizes")
        return cls._from_environment(wanted, port, environ)[0]

    @classmethod
    def from_yaml(
        cls,
        path: str | PathLike[str],
        *,
        task: Task | str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ClusterConfig":
        """Read the `cluster:` section of a file, and the task that this process is from the environment.

        The file has addresses or the number of tasks of each role. With numbers, the addresses come from a
        scheduler's variables; without these, the tasks run on this machine. The file and the variables must
        agree.
        """
        document = read_yaml_file(path)
        if "cluster" not in document.value:
            near = [key for key in document.value if is_near(key, "cluster")]
            remedy = f"Is it {shown(near[0])}?" if near else "Write at least `cluster: {worker: 2}`"
            raise ConfigError(document.source.at("cluster"), "is missing", remedy=remedy)
        return cls.from_section(document.part("cluster"), task=task, environ=environ)

    @classmethod
    def from_section(
        cls,
        document: Document,
        *,
        task: Task | str | None,
        environ: Mapping[str, str] | None,
    ) -> "ClusterConfig":
        """Read a `cluster:` section of a parsed file; see `from_yaml`."""
        section, source = decode(document, ClusterSection), document.source
        roles = section.roles(source)
        counts = {role: value for role, value in roles.items() if isinstance(value, int)}
        lists: dict[str, Any] = {role: value for role, value in roles.items() if not isinstance(value, int)}
        if counts and lists:
            some, other = next(iter(counts)), next(iter(lists))
            problem = f"is a number, but {source.at(other)} is a list"
            raise ConfigError(source.at(some), problem, remedy="Write addresses for all roles, or for none")
        if lists:
            written = cls(**_arguments(lists), source=source)
            claimed, claim = cls._from_environment(written._task_counts(), section.port, environ)
            if claim is not None:
                written = written._with_task_of(claimed, claim)
        else:
            counts = checked_counts(_with_chief(counts), source)
            wanted = TaskCounts(counts, source.at()) if counts else None
            written, claim = cls._from_environment(wanted, section.port, environ)
            if claim is None and counts:
                written = cls._local(counts, source)
        return written if task is None else written._with_chosen_task(task)

    # -- inner parts --

    @classmethod
    def _local(cls, counts: Mapping[str, int], source: Source) -> "ClusterConfig":
        counts = checked_counts(counts, source)
        ports = LocalPorts(sum(counts.values()))
        free = iter(ports.ports)
        roles = {
            role: tuple(f"127.0.0.1:{next(free)}" for _ in range(count)) for role, count in counts.items()
        }
        return cls(**_arguments(roles), source=source, _ports=ports)

    @classmethod
    def _from_claim(cls, claim: Claim) -> "ClusterConfig":
        roles = _arguments(claim.addresses)
        task = None if claim.task is None else Task(*claim.task)
        return cls(**roles, task=task, source=claim.source, _task_source=claim.task_source)

    @classmethod
    def _from_environment(
        cls, wanted: TaskCounts | None, port: int | None, environ: Mapping[str, str] | None
    ) -> "tuple[ClusterConfig, Claim | None]":
        environ = os.environ if environ is None else environ
        schedulers = [kind(environ) for kind in PRECEDENCE]
        present = [scheduler for scheduler in schedulers if scheduler.present]
        if not present:
            _log.debug("the environment has no scheduler's variables")
            return cls(source=Source("the environment")), None
        chosen = present[0]
        stated = stated_task_counts(environ)
        claim = chosen.claim(wanted or stated, port)
        cluster = cls._from_claim(claim)
        counts = cluster._task_counts()
        for expected in filter(None, (wanted, stated)):
            check_same_task_counts(counts, expected)
        for other in _comparable(present):
            check_same_task_counts(cls._from_claim(other.claim(counts, port))._task_counts(), counts)
        _log.info("read the cluster from %s: %s; this is %s", chosen.name, counts, cluster.task)
        return cluster, claim

    def _with_task_of(self, claimed: "ClusterConfig", claim: Claim) -> "ClusterConfig":
        """Return this cluster with the task of the environment's, if both have the same hosts."""
        for task in claimed.tasks():
            ours, theirs = self.address(task), claimed.address(task)
            if not _same(ours, theirs, ports=claim.has_ports):
                where = self.source.at(task.type, task.index)
                raise ConfigError(
                    where, f"says {ours}, but {claim.source.at(task.type, task.index)} says {theirs}"
                )
        return replace(self, task=claimed.task, _task_source=claim.task_source)

    def _with_chosen_task(self, task: Task | str) -> "ClusterConfig":
        """Return this cluster with the task that the user named, unless the environment names another."""
        chosen = Task.parse(task) if isinstance(task, str) else task
        if self.task not in (None, chosen):
            problem = f"says {chosen}, but {self._at_task()} says {self.task}"
            raise ConfigError("task", problem, remedy="Remove the one that is wrong")
        return replace(self, task=chosen, _task_source=Source("task"))

    def _role(self, role: str) -> tuple[str, ...]:
        check_role(role, self.source.at(), [name for name in self._addresses if name not in ROLES])
        return self._addresses[role]

    def _task_counts(self) -> TaskCounts:
        return TaskCounts(self.counts, self.source.at())

    def _own(self, task: Task) -> Task:
        """Return a task, if this cluster has it."""
        check_task(*task, self._addresses, self.source, Source(self.source.name).at())
        return task

    def _at_task(self, *path: str) -> str:
        return self._task_source.at(*path) if self._task_source else Source("ClusterConfig").at("task")


def _with_chief(counts: Mapping[str, int]) -> dict[str, int]:
    is_needed = any(count for role, count in counts.items() if role not in ("chief", "worker", "evaluator"))
    return {"chief": 1, **counts} if is_needed else dict(counts)


def _arguments(addresses: Mapping[str, Any]) -> dict[str, Any]:
    """Return ClusterConfig's arguments for addresses by role and job."""
    jobs = {name: hosts for name, hosts in addresses.items() if name not in ROLES}
    return {**{role: hosts for role, hosts in addresses.items() if role in ROLES}, "jobs": jobs}


def _comparable(present: Iterable[Scheduler]) -> list[Scheduler]:
    """Return the schedulers besides the first that must agree with it."""
    _, *others = present
    if any(isinstance(scheduler, OpenMPI) for scheduler in present):
        # mpirun starts its helpers through srun: Slurm then counts helpers, not tasks.
        others = [scheduler for scheduler in others if not isinstance(scheduler, Slurm)]
    return others


def _same(ours: str, theirs: str, *, ports: bool) -> bool:
    """Return whether two addresses may be the same.

    A host's name and its number may be the same host, and so may its short name and its full name.
    """
    (host, port), (other, other_port) = split_address(ours), split_address(theirs)
    if ports:
        return (host, port) == (other, other_port)
    are_numbers = [re.fullmatch(r"[0-9.]+|.*:.*", name) is not None for name in (host, other)]
    if any(are_numbers):
        return host == other or not all(are_numbers)
    return host.split(".")[0] == other.split(".")[0]
