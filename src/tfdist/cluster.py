"""Describe a cluster: who is in it, where, and which of its tasks this process is.

    cluster = ClusterConfig(chief=["a:2222"], worker=["b:2222", "c:2222"], ps=["d:2222"])
    cluster.with_task("worker", 1).tf_config_json()

No TensorFlow is loaded, but for `cluster_spec()` and `resolver()`, which give its objects.
"""

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

from tfdist.addresses import LocalPorts, split_address
from tfdist.documents import Document, Source, decode, read_yaml_file
from tfdist.environments import PRECEDENCE, ROLES, Claim, Environment, OpenMPI, Sizes, Slurm, TfConfig
from tfdist.errors import ConfigError, is_near, shown
from tfdist.validation import (
    check_cluster,
    check_name,
    check_role,
    check_same_sizes,
    check_task,
    checked_addresses,
    checked_counts,
    checked_jobs,
)

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["ClusterConfig", "ClusterSection", "Task"]

_log = logging.getLogger("tfdist")


class Task(NamedTuple):
    """Name one task of a cluster: its role, or other job, and its index in it."""

    type: str
    index: int  # type: ignore[assignment]  # a tuple's own .index() gives way to TensorFlow's word

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @classmethod
    def parse(cls, text: str, where: str = "task") -> "Task":
        """Read `worker:1`; the one chief or evaluator needs no index."""
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(?::([0-9]{1,9}))?", text)
        if not match or (match[2] is None and match[1] not in ("chief", "evaluator")):
            raise ConfigError(where, expected="a role and an index such as worker:1", received=shown(text))
        check_name(match[1], where)
        return cls(match[1], int(match[2] or 0))


_Alone = Annotated[int, Meta(ge=0, le=1)] | tuple[str, ...] | None
_Many = Annotated[int, Meta(ge=0, le=1000)] | tuple[str, ...] | None


class ClusterSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say who is in the cluster: the addresses (host:port) of each role, or how many tasks it has."""

    chief: Annotated[_Alone, Meta(description="Coordinates and writes; numbers: 1 where there is a ps.")] = (
        None
    )
    worker: Annotated[_Many, Meta(description="Compute. Without a chief, worker 0 is it.")] = None
    ps: Annotated[_Many, Meta(description="Hold the variables, for parameter-server training.")] = None
    evaluator: Annotated[_Alone, Meta(description="Evaluates checkpoints beside the training.")] = None
    jobs: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=1000)] | tuple[str, ...]],
        Meta(description="Jobs of any other name, which serve a chief that calls tfdist.connect."),
    ] = {}
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="The first port, where a scheduler names hosts only."),
    ] = None

    def roles(self) -> dict[str, int | tuple[str, ...]]:
        """Give what is said of each role and other job that is named."""
        said = {**{role: getattr(self, role) for role in ROLES}, **self.jobs}
        return {role: value for role, value in said.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Hold the addresses of a cluster's tasks by role, and the task that this process is.

    A cluster without any role stands for a single process; it is false in a condition.

    Attributes:
        chief: The address of the chief (also called coordinator or master), if there is one.
        worker: The addresses of the workers.
        ps: The addresses of the parameter servers.
        evaluator: The address of the evaluator, which is no part of the training cluster.
        jobs: The addresses of jobs of any other name, which a chief computes on (see `tfdist.connect`); given
            as a mapping, held as sorted pairs.
        task: Which task this process is, or None if it is not one of them.
        source: Where this was written, for messages.
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
        for role in ROLES:  # frozen: this is the one place that may set them
            object.__setattr__(self, role, addresses[role])
        addresses |= checked_jobs(self.jobs, self.source)
        object.__setattr__(self, "_addresses", addresses)
        object.__setattr__(self, "jobs", tuple(each for each in addresses.items() if each[0] not in ROLES))
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
        """Count the tasks of a role, or of another job."""
        return len(self._role(role))

    def tasks(self) -> tuple[Task, ...]:
        """List all tasks: chief, workers, parameter servers, evaluator, and those of other jobs."""
        return tuple(Task(role, index) for role, own in self._addresses.items() for index in range(len(own)))

    def address(self, task: tuple[str, int]) -> str:
        """Give the address of a task."""
        type_, index = self._own(Task(*task))
        if not self.size(type_):
            raise ConfigError(self.source.at(type_), "has no address in this cluster")
        return self._role(type_)[index]

    @property
    def is_chief(self) -> bool:
        """Say whether this process is the one that writes checkpoints, summaries and exports.

        TensorFlow's rule: the chief; where there is none, worker 0; the evaluator, as the only one of its own
        cluster; and a single process.
        """
        if not self:
            return True
        if self.task is None:
            return False
        return self.task.type == "evaluator" or self.task == self.lead

    @property
    def lead(self) -> Task:
        """Name the task that leads the others: the chief, or worker 0 where there is none."""
        return Task("chief" if self.chief else "worker", 0)

    @property
    def serves(self) -> bool:
        """Say whether this process has to call `tfdist.serve`: a ps, a worker beside one, or another job."""
        if self.task is None:
            return False
        return self.task.type not in ROLES or (bool(self.ps) and self.task.type in ("ps", "worker"))

    @property
    def is_on_ports_of_ours(self) -> bool:
        """Say whether `local` chose the addresses, for a cluster that starts on this machine."""
        return self._ports is not None

    # -- changing --

    def with_task(self, task: str | tuple[str, int], index: int = 0) -> "ClusterConfig":
        """Give the same cluster as another of its tasks sees it."""
        task = Task(task, index) if isinstance(task, str) else Task(*task)
        return replace(self, task=task, _task_source=Source("with_task"))

    def training(self) -> "ClusterConfig":
        """Give the cluster without its evaluator, as the training tasks see it.

        TensorFlow's servers wait for every task of the cluster that they are given, and the evaluator runs
        no server.
        """
        return replace(self, evaluator=()) if self.evaluator else self

    def of(self, tasks: Iterable[Task]) -> "ClusterConfig":
        """Give the cluster that these tasks alone would be, numbered anew, as its own task sees it there."""
        kept = {role: [each for each in sorted(tasks) if each.type == role] for role in self._addresses}
        roles = _arguments({role: tuple(map(self.address, own)) for role, own in kept.items()})
        task = self.task
        if task is not None:
            task = Task(task.type, kept[task.type].index(task))
        return replace(self, **roles, task=task)

    # -- giving out --

    def tf_config(self, task_type: str | None = None, index: int = 0) -> dict[str, Any]:
        """Give the TF_CONFIG of a task (without arguments: of this process) as a dict.

        The evaluator stands only in its own TF_CONFIG: see `training`.
        """
        task = self.task if task_type is None else self._own(Task(task_type, index))
        shown_to = self if task is not None and task.type == "evaluator" else self.training()
        cluster = {role: list(own) for role, own in shown_to._addresses.items() if own}
        if not cluster:
            return {}
        config: dict[str, Any] = {"cluster": cluster}
        if task is not None:
            config["task"] = {"type": task.type, "index": task.index}
        return config

    def tf_config_json(self, task_type: str | None = None, index: int = 0) -> str:
        """Give the TF_CONFIG of a task (without arguments: of this process) as JSON on one line."""
        return json.dumps(self.tf_config(task_type, index))

    def cluster_spec(self) -> "tf.train.ClusterSpec":
        """Give TensorFlow's object for the training cluster."""
        import tensorflow as tf

        return tf.train.ClusterSpec(self.training().tf_config().get("cluster", {}))

    def resolver(self) -> "tf.distribute.cluster_resolver.ClusterResolver":
        """Give TensorFlow's resolver for this process in the training cluster."""
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
        """Make a cluster on this machine, on free ports that nobody else gets while the object lives.

        A chief is added where there are parameter servers or other jobs, since somebody has to coordinate.
        """
        counts = {"worker": workers, "ps": ps, "evaluator": evaluator, **(jobs or {})}
        counts = _with_chief(counts) if chief is None else {"chief": chief, **counts}
        return cls._local(counts, Source("ClusterConfig.local"))

    @classmethod
    def from_tf_config(cls, text: str | bytes | None = None) -> "ClusterConfig":
        """Read a TF_CONFIG, of this process's environment where none is given."""
        if text is None:
            text = os.environ.get("TF_CONFIG", "")
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        if not isinstance(text, str):
            remedy = "Give json.dumps(…) of it"
            raise ConfigError("TF_CONFIG", expected="JSON text", received=shown(text), remedy=remedy)
        found = TfConfig({"TF_CONFIG": text})
        return cls._from_claim(found.claim()) if found.present else cls(source=Source("TF_CONFIG"))

    @classmethod
    def from_environment(
        cls,
        sizes: Mapping[str, int] | None = None,
        *,
        port: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ClusterConfig":
        """Read the cluster from the variables of the scheduler that started this process.

        The first that is present is taken: TF_CONFIG, Vertex AI, SageMaker, Kubernetes, Open MPI, Slurm. A
        later one that is present too must agree on the number of tasks. Where none is, this is a single
        process.

        Args:
            sizes: How many tasks of each role, for schedulers that know only hosts and ranks.
            port: The first port, for schedulers that know only hosts.
            environ: The variables to read, in place of `os.environ`.
        """
        wanted = None if sizes is None else Sizes(checked_counts(sizes, Source("sizes")), "sizes")
        return cls._from_environment(wanted, port, environ)[0]

    @classmethod
    def from_yaml(
        cls,
        path: str | PathLike[str],
        *,
        task: Task | str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ClusterConfig":
        """Read the `cluster:` section of a file, and from the environment which task this process is.

        The file lists addresses, or says how many tasks of each role there are: then a scheduler's variables
        say where, or else they are on this machine. What file and variables both say must agree.
        """
        document = read_yaml_file(path)
        if "cluster" not in document.value:
            near = [key for key in document.value if is_near(key, "cluster")]
            remedy = f"Is it {shown(near[0])}?" if near else "Say at least `cluster: {worker: 2}`"
            raise ConfigError(document.source.at("cluster"), "is missing", remedy=remedy)
        return cls.from_section(document.part("cluster"), task=task, environ=environ)

    @classmethod
    def from_section(
        cls,
        document: Document,
        *,
        task: Task | str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ClusterConfig":
        """Read a `cluster:` section that has been read from a file already; see `from_yaml`."""
        section, source = decode(document, ClusterSection), document.source
        roles = section.roles()
        counts = {role: said for role, said in roles.items() if isinstance(said, int)}
        lists: dict[str, Any] = {role: said for role, said in roles.items() if not isinstance(said, int)}
        if counts and lists:
            some, other = next(iter(counts)), next(iter(lists))
            problem = f"is a number, but {source.at(other)} is a list"
            raise ConfigError(source.at(some), problem, remedy="Give addresses for all roles, or none")
        if lists:
            written = cls(**_arguments(lists), source=source)
            found, claim = cls._from_environment(written._sizes(), section.port, environ)
            if claim is not None:
                written = written._joined(found, claim)
        else:
            counts = checked_counts(_with_chief(counts), source)
            wanted = Sizes(counts, source.at()) if counts else None
            written, claim = cls._from_environment(wanted, section.port, environ)
            if claim is None and counts:
                written = cls._local(counts, source)
        return written if task is None else written._told(task)

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
        cls, wanted: Sizes | None, port: int | None, environ: Mapping[str, str] | None
    ) -> "tuple[ClusterConfig, Claim | None]":
        environ = os.environ if environ is None else environ
        present = [each for each in (kind(environ) for kind in PRECEDENCE) if each.present]
        if not present:
            _log.debug("no scheduler's variables are set")
            return cls(source=Source("the environment")), None
        taken = present[0]
        claim = taken.claim(wanted, port)
        cluster = cls._from_claim(claim)
        if wanted is not None:
            check_same_sizes(cluster._sizes(), wanted)
        for other in _comparable(present):
            check_same_sizes(cls._from_claim(other.claim(cluster._sizes(), port))._sizes(), cluster._sizes())
        _log.info("the cluster is read from %s: %s; this is %s", taken.name, cluster._sizes(), cluster.task)
        return cluster, claim

    def _joined(self, found: "ClusterConfig", claim: Claim) -> "ClusterConfig":
        """Take the task from the environment into a written cluster, if both mean the same hosts."""
        for task in found.tasks():
            ours, theirs = self.address(task), found.address(task)
            if not _same(ours, theirs, ports=claim.has_ports):
                where = self.source.at(task.type, task.index)
                raise ConfigError(
                    where, f"says {ours}, but {claim.source.at(task.type, task.index)} says {theirs}"
                )
        return replace(self, task=found.task, _task_source=claim.task_source)

    def _told(self, task: Task | str) -> "ClusterConfig":
        """Take the task that the user named, unless the environment names another."""
        told = Task.parse(task) if isinstance(task, str) else task
        if self.task not in (None, told):
            problem = f"says {told}, but {self._at_task()} says {self.task}"
            raise ConfigError("task", problem, remedy="Leave out the one that is wrong")
        return replace(self, task=told, _task_source=Source("task"))

    def _role(self, role: str) -> tuple[str, ...]:
        check_role(role, self.source.at(), [name for name in self._addresses if name not in ROLES])
        return self._addresses[role]

    def _sizes(self) -> Sizes:
        return Sizes({role: len(own) for role, own in self._addresses.items()}, self.source.at())

    def _own(self, task: Task) -> Task:
        """Give a task back if it is of this cluster."""
        return replace(self, task=task, _task_source=Source(self.source.name)).task or task

    def _at_task(self, *path: str) -> str:
        return self._task_source.at(*path) if self._task_source else Source("ClusterConfig").at("task")


def _with_chief(counts: Mapping[str, int]) -> dict[str, int]:
    is_needed = any(count for role, count in counts.items() if role not in ("chief", "worker", "evaluator"))
    return {"chief": 1, **counts} if is_needed else dict(counts)


def _arguments(addresses: Mapping[str, Any]) -> dict[str, Any]:
    """Give addresses by role and job as ClusterConfig takes them."""
    jobs = {name: own for name, own in addresses.items() if name not in ROLES}
    return {**{role: own for role, own in addresses.items() if role in ROLES}, "jobs": jobs}


def _comparable(present: Iterable[Environment]) -> list[Environment]:
    """List the environments besides the first that must agree with it."""
    _, *others = present
    if any(isinstance(each, OpenMPI) for each in present):
        # mpirun starts its helpers through srun: Slurm then counts helpers, not tasks.
        others = [each for each in others if not isinstance(each, Slurm)]
    return others


def _same(ours: str, theirs: str, *, ports: bool) -> bool:
    """Say whether two addresses may be the same; a short name, a long one and a number cannot be compared."""
    (host, port), (other, other_port) = split_address(ours), split_address(theirs)
    if ports:
        return (host, port) == (other, other_port)
    are_numbers = [re.fullmatch(r"[0-9.]+|.*:.*", each) is not None for each in (host, other)]
    if any(are_numbers):
        return host == other or not all(are_numbers)
    return host.split(".")[0] == other.split(".")[0]
