"""Read the cluster from environment variables: one small class for each scheduler.

`present` returns whether the variables are set. `claim` returns the addresses of each role and the task that
this process is. `ClusterConfig` checks them.

Schedulers that know only hosts and ranks (all but TF_CONFIG and CLUSTER_SPEC) need the sizes of the roles;
without sizes, every task is a worker. tfdist assigns ranks to roles in alphabetical order (chief, evaluator,
ps, worker), as TensorFlow's SlurmClusterResolver does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, Protocol

from tfdist._utils.yaml import Source, read_json
from tfdist.cluster.hostlists import MOST_HOSTS, expand_hosts
from tfdist.errors import ConfigError, did_you_mean, shown

__all__ = ["DEFAULT_PORT", "PRECEDENCE", "ROLES", "SIZES", "Claim", "Environment", "Sizes", "stated_sizes"]

ROLES = ("chief", "worker", "ps", "evaluator")
SIZES = "TFDIST_ROLES"  # such as chief=1,ps=1,worker=2: for scripts, which have no config file
DEFAULT_PORT = 2222


class Sizes(NamedTuple):
    """The number of tasks of each role, and the place that states it."""

    counts: Mapping[str, int]
    said_by: str

    def __str__(self) -> str:
        return " + ".join(f"{count} {role}" for role, count in self.counts.items() if count) or "no tasks"


def stated_sizes(environ: Mapping[str, str]) -> Sizes | None:
    """Return the sizes that TFDIST_ROLES states, if it is set."""
    if not (text := environ.get(SIZES, "").strip()):
        return None
    pairs = [re.fullmatch(r"([a-z_][a-z0-9_]*)=([0-9]{1,5})", part.strip()) for part in text.split(",")]
    counts = {pair[1]: int(pair[2]) for pair in pairs if pair}
    if len(counts) < len(pairs):
        expected = "each role once with its number of tasks, such as chief=1,ps=1,worker=2"
        raise ConfigError(SIZES, expected=expected, received=shown(text))
    return Sizes(counts, SIZES)


class Claim(NamedTuple):
    """The cluster by one scheduler's variables: its addresses, and the task that this process is."""

    source: Source
    addresses: Mapping[str, Sequence[str]]
    task: tuple[str, int] | None
    task_source: Source
    has_ports: bool = False  # whether the variables state the ports; otherwise tfdist chose them


class Environment(Protocol):
    """The variables of one scheduler; `name` is for messages."""

    name: str

    @property
    def present(self) -> bool:
        """Return whether the variables are set."""

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        """Return the cluster that the variables describe.

        Raises:
            ConfigError: The variables are malformed or contradict each other.
        """


class TfConfig:
    """TF_CONFIG, TensorFlow's own variable; the old name `master` means chief."""

    name = "TF_CONFIG"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._text = environ.get("TF_CONFIG", "")

    @property
    def present(self) -> bool:
        return bool(self._text.strip())

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        document = read_json(self._text, self.name)
        roles = _object(document.value, "cluster", document.source)
        task = _object(document.value, "task", document.source)
        cluster = document.source.inside("cluster")
        addresses = {_ROLE_OF_MASTER.get(role, role): hosts for role, hosts in roles.items()}
        if len(addresses) < len(roles):
            raise ConfigError(
                cluster.at(), "has both master and chief", remedy="Keep one: they mean the same"
            )
        source = document.source.inside("task")
        return Claim(cluster, addresses, _task(task, source, _ROLE_OF_MASTER), source, has_ports=True)


class VertexAI:
    """CLUSTER_SPEC, in which Vertex AI numbers its pools: chief, workers, servers, evaluators."""

    name = "Vertex AI's CLUSTER_SPEC"
    _ROLE_OF_POOL: ClassVar = {f"workerpool{i}": role for i, role in enumerate(ROLES)}

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._text = environ.get("CLUSTER_SPEC", "")

    @property
    def present(self) -> bool:
        return bool(self._text.strip())

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        document = read_json(self._text, "CLUSTER_SPEC")
        cluster = document.source.inside("cluster")
        pools = _object(document.value, "cluster", document.source)
        for pool in pools:
            if pool not in self._ROLE_OF_POOL:
                raise ConfigError(
                    cluster.at(pool), "unknown pool", remedy=did_you_mean(pool, self._ROLE_OF_POOL)
                )
        addresses = {self._ROLE_OF_POOL[pool]: hosts for pool, hosts in pools.items()}
        task = _object(document.value, "task", document.source)
        source = document.source.inside("task")
        return Claim(cluster, addresses, _task(task, source, self._ROLE_OF_POOL), source, has_ports=True)


class SageMaker:
    """SM_HOSTS and SM_CURRENT_HOST, or SM_RESOURCE_CONFIG, which must agree with them.

    In a heterogeneous cluster, SM_RESOURCE_CONFIG has instance groups. Groups whose names are roles have
    the tasks of these roles.
    """

    name = "SageMaker's SM_HOSTS"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    def present(self) -> bool:
        return any(self._environ.get(name, "").strip() for name in ("SM_HOSTS", "SM_RESOURCE_CONFIG"))

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        hosts, host = self._hosts()
        if host not in hosts:
            where = (
                "SM_CURRENT_HOST"
                if "SM_CURRENT_HOST" in self._environ
                else "SM_RESOURCE_CONFIG: current_host"
            )
            raise ConfigError(
                where, expected=f"one of the {len(hosts)} hosts of SM_HOSTS", received=shown(host)
            )
        if groups := self._groups(hosts):
            addresses = {
                role: [f"{name}:{port or DEFAULT_PORT}" for name in names] for role, names in groups.items()
            }
            task = next((role, names.index(host)) for role, names in groups.items() if host in names)
            return Claim(Source(_GROUPS), addresses, task, Source("SM_CURRENT_HOST"))
        ranked = [f"{name}:{port or DEFAULT_PORT}" for name in hosts]
        return _by_rank(ranked, hosts.index(host), sizes, "SM_HOSTS", "SM_CURRENT_HOST")

    def _groups(self, hosts: list[str]) -> dict[str, list[str]] | None:
        """Return the hosts of each role by the instance groups; None where no group is named like a role."""
        if not (text := self._environ.get("SM_RESOURCE_CONFIG", "").strip()):
            return None
        groups = read_json(text, "SM_RESOURCE_CONFIG").value.get("instance_groups") or []
        if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
            raise ConfigError(_GROUPS, expected="a JSON list of objects", received=shown(groups))
        named = [str(group.get("instance_group_name")) for group in groups]
        if not set(named) & set(ROLES):
            return None
        for name in named:
            if name not in ROLES:
                expected = f"a role ({', '.join(ROLES)}) as the name of each group, or of none"
                raise ConfigError(_GROUPS, expected=expected, received=shown(name))
        found = {name: _names(group.get("hosts"), _GROUPS) for name, group in zip(named, groups, strict=True)}
        if sorted(host for names in found.values() for host in names) != hosts or len(found) < len(named):
            raise ConfigError(_GROUPS, f"must have each of the {len(hosts)} hosts of SM_HOSTS once")
        return found

    def _hosts(self) -> tuple[list[str], str]:
        """Return all hosts, and this one."""
        stated: dict[str, tuple[list[str], str]] = {}
        if text := self._environ.get("SM_RESOURCE_CONFIG", "").strip():
            config = read_json(text, "SM_RESOURCE_CONFIG").value
            hosts = _names(config.get("hosts"), "SM_RESOURCE_CONFIG: hosts")
            stated["SM_RESOURCE_CONFIG"] = hosts, str(config.get("current_host"))
        if text := self._environ.get("SM_HOSTS", "").strip():
            hosts = _names(read_json(f'{{"hosts": {text}}}', "SM_HOSTS").value["hosts"], "SM_HOSTS")
            stated["SM_HOSTS"] = hosts, _required(self._environ, "SM_CURRENT_HOST", "SM_HOSTS")
        if len(stated) == 2 and stated["SM_HOSTS"] != stated["SM_RESOURCE_CONFIG"]:
            ours, theirs = ("{} on {}".format(*stated[name]) for name in ("SM_HOSTS", "SM_RESOURCE_CONFIG"))
            problem = f"says {ours}, but SM_RESOURCE_CONFIG says {theirs}"
            raise ConfigError("SM_HOSTS", problem, remedy="Unset the wrong one")
        return next(iter(stated.values()))


class SkyPilot:
    """SKYPILOT_NODE_IPS and SKYPILOT_NODE_RANK: a task on each of several nodes."""

    name = "SkyPilot's SKYPILOT_NODE_IPS"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    def present(self) -> bool:
        # On a single node, a cluster is one of this machine.
        return len(self._environ.get("SKYPILOT_NODE_IPS", "").split()) > 1

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        hosts = self._environ["SKYPILOT_NODE_IPS"].split()
        _required(self._environ, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
        rank = _number(self._environ, "SKYPILOT_NODE_RANK")
        stated = _number(self._environ, "SKYPILOT_NUM_NODES", default=len(hosts))
        if stated != len(hosts):
            raise ConfigError("SKYPILOT_NUM_NODES", f"says {stated}, but SKYPILOT_NODE_IPS has {len(hosts)}")
        ranked = [f"{host}:{port or DEFAULT_PORT}" for host in hosts]
        return _by_rank(ranked, rank, sizes, "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")


class Kubernetes:
    """JOB_COMPLETION_INDEX of an indexed Job, with the headless service that resolves its pods' names.

    Job: TFDIST_SERVICE names the service. A pod's name is this pod's HOSTNAME with the pod's own index.
    Jobs, one for each role: REPLICATED_JOB_NAME is the role, and HOSTNAME ends in the role and the index.
    JobSet: JOBSET_NAME and REPLICATED_JOB_NAME (set them by the downward API) make up the names. The
    replicated jobs are the roles, and the service is TFDIST_SERVICE or the JobSet's own.
    """

    name = "Kubernetes' JOB_COMPLETION_INDEX"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._jobset = environ.get("JOBSET_NAME", "")
        self._service = environ.get("TFDIST_SERVICE", "") or self._jobset

    @property
    def present(self) -> bool:
        # Without a service, the pods of an indexed Job cannot reach each other, so each trains alone.
        return bool(self._environ.get("JOB_COMPLETION_INDEX") and self._service)

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        index = _number(self._environ, "JOB_COMPLETION_INDEX")
        if sizes is None:
            problem = "Kubernetes tells a pod its index, and not how many pods there are"
            remedy = "Write the number of each role into the config, such as `cluster: {worker: 4}`"
            raise ConfigError("JOB_COMPLETION_INDEX", problem, remedy=remedy)
        port = port or DEFAULT_PORT
        role = self._environ.get("REPLICATED_JOB_NAME", "")
        if not self._jobset and not role:
            stem = self._stem(f"-{index}")
            ranked = [f"{stem}-{i}.{self._service}:{port}" for i in range(sum(sizes.counts.values()))]
            return _by_rank(ranked, index, sizes, "TFDIST_SERVICE", "JOB_COMPLETION_INDEX")
        _required(self._environ, "REPLICATED_JOB_NAME", "JOBSET_NAME")
        # A JobSet numbers the Jobs of a role, and here there is one.
        start, middle = (self._jobset, "-0") if self._jobset else (self._stem(f"-{role}-{index}"), "")
        addresses = {
            job: [f"{start}-{job}{middle}-{i}.{self._service}:{port}" for i in range(size)]
            for job, size in sizes.counts.items()
            if size
        }
        source = Source("REPLICATED_JOB_NAME, JOB_COMPLETION_INDEX")
        name = "JOBSET_NAME" if self._jobset else "TFDIST_SERVICE"
        return Claim(Source(name), addresses, (role, index), source)

    def _stem(self, ending: str) -> str:
        """Return the part of this pod's name that all pods share."""
        hostname = _required(self._environ, "HOSTNAME", "JOB_COMPLETION_INDEX")
        stem = hostname.removesuffix(ending)
        if not stem or stem == hostname:
            expected = f"the pod's name, ending in {ending}"
            raise ConfigError("HOSTNAME", expected=expected, received=shown(hostname))
        return stem


class OpenMPI:
    """mpirun's OMPI_COMM_WORLD_*, with the hosts of TFDIST_HOSTS or of Slurm's allocation.

    Open MPI tells a process its rank and the number of ranks, but not the hosts of the others.
    """

    name = "Open MPI's OMPI_COMM_WORLD_SIZE"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    def present(self) -> bool:
        return bool(self._environ.get("OMPI_COMM_WORLD_SIZE"))

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        size = _number(self._environ, "OMPI_COMM_WORLD_SIZE", least=1)
        rank = _number(self._environ, "OMPI_COMM_WORLD_RANK")
        slots = _number(self._environ, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1)
        local = _number(self._environ, "OMPI_COMM_WORLD_LOCAL_RANK")
        name, hosts = self._hosts(one=slots == size)
        if len(hosts) * slots != size or rank % slots != local:
            expected = f"{slots} ranks in turn on each of the {len(hosts)} hosts of {name}"
            received = f"rank {rank} of {size}, the {local}th here"
            remedy = "Use `mpirun --map-by slot` with as many slots on each host"
            raise ConfigError("OMPI_COMM_WORLD_SIZE", expected=expected, received=received, remedy=remedy)
        ranked = [f"{host}:{(port or DEFAULT_PORT) + i}" for host in hosts for i in range(slots)]
        return _by_rank(ranked, rank, sizes, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def _hosts(self, *, one: bool) -> tuple[str, list[str]]:
        if one:
            return "this machine", ["127.0.0.1"]
        for name in ("TFDIST_HOSTS", "SLURM_JOB_NODELIST"):
            if text := self._environ.get(name):
                return name, expand_hosts(text, name)
        raise ConfigError(
            "OMPI_COMM_WORLD_SIZE",
            "ranks run on several hosts, and mpirun does not say which",
            remedy="Name them: mpirun -x TFDIST_HOSTS=host1,host2 …",
        )


class Slurm:
    """The SLURM_* variables of a job step, which srun sets.

    Ports start at `port`. The default port comes from the job's number, so that two jobs on one node use
    different ports.
    """

    name = "Slurm's SLURM_STEP_NODELIST"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    def present(self) -> bool:
        # A batch script outside of srun is one process, whatever the size of the allocation.
        return all(self._environ.get(name) for name in ("SLURM_STEP_NODELIST", "SLURM_PROCID"))

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        hosts = expand_hosts(self._environ["SLURM_STEP_NODELIST"], "SLURM_STEP_NODELIST")
        per_host = self._tasks_per_host(len(hosts))
        rank = _number(self._environ, "SLURM_PROCID")
        total = sum(per_host)
        stated = (
            _number(self._environ, "SLURM_STEP_NUM_TASKS")
            if "SLURM_STEP_NUM_TASKS" in self._environ
            else total
        )
        if stated != total:
            problem = f"says {stated}, but SLURM_STEP_TASKS_PER_NODE says {total} over {len(hosts)} nodes"
            raise ConfigError("SLURM_STEP_NUM_TASKS", problem)
        first = port or 10_000 + _number(self._environ, "SLURM_JOB_ID", default=0) % 10_000
        tasks = dict(zip(hosts, per_host, strict=True))
        ranked = [
            f"{host}:{first + i}"
            for group in self._groups(hosts)
            for host, i in self._distributed([(host, i) for host in group for i in range(tasks[host])])
        ]
        return _by_rank(ranked, rank, sizes, "SLURM_STEP_NODELIST", "SLURM_PROCID")

    def _groups(self, hosts: list[str]) -> list[list[str]]:
        """Return the hosts of the step, by component of the job, as Slurm numbers the ranks.

        A heterogeneous job has several components. SLURM_STEP_NODELIST sorts the hosts of all of them, so
        that the first host need not have the first rank.
        """
        stem = "SLURM_JOB_NODELIST"
        found = [re.fullmatch(rf"{stem}_(?:HET|PACK)_GROUP_([0-9]{{1,5}})", name) for name in self._environ]
        names = {int(match[1]): match[0] for match in found if match}  # both names have the same hosts
        if not names and self._environ.get("SLURM_HET_SIZE", "1") in ("", "0", "1"):
            return [hosts]
        in_step = set(hosts)
        groups = [
            [host for host in expand_hosts(self._environ[name], name) if host in in_step]
            for _, name in sorted(names.items())
        ]
        listed = [host for group in groups for host in group]
        if sorted(listed) != sorted(hosts):
            raise ConfigError(
                "SLURM_HET_SIZE",
                f"the hosts of {stem}_HET_GROUP_0 and so on must be those of SLURM_STEP_NODELIST, each once",
                remedy="Give each component of the job nodes of its own, or state the cluster by TF_CONFIG",
            )
        return groups

    def _tasks_per_host(self, hosts: int) -> list[int]:
        name = "SLURM_STEP_TASKS_PER_NODE"
        counts: list[int] = []
        for part in _required(self._environ, name, "SLURM_STEP_NODELIST").split(","):
            match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part.strip())
            if not match:
                raise ConfigError(name, expected="counts such as 2(x3),1", received=shown(part))
            counts += [int(match[1])] * int(match[2] or 1)
            if sum(counts) > MOST_HOSTS:
                raise ConfigError(name, expected=f"at most {MOST_HOSTS} tasks", received=shown(part))
        if len(counts) != hosts:
            raise ConfigError(name, f"counts {len(counts)} nodes, but SLURM_STEP_NODELIST names {hosts}")
        return counts

    def _distributed(self, slots: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the slots in the order of their ranks, which srun's --distribution decides."""
        order = self._environ.get("SLURM_DISTRIBUTION", "block").lower().split(":")[0].split(",")[0]
        if order == "cyclic":
            return sorted(slots, key=lambda slot: slot[1])
        if order in ("block", "", "*"):
            return slots
        expected = "block or cyclic"
        remedy = "Use `srun --distribution=block`"
        raise ConfigError("SLURM_DISTRIBUTION", expected=expected, received=shown(order), remedy=remedy)


# tfdist uses the first that is present; the others must not contradict it. Variables that state the whole
# cluster come first. Open MPI comes before Slurm, because mpirun starts its helpers through srun, which then
# describes the helpers.
PRECEDENCE: tuple[Callable[[Mapping[str, str]], Environment], ...] = (
    TfConfig,
    VertexAI,
    SageMaker,
    Kubernetes,
    OpenMPI,
    Slurm,
    SkyPilot,
)

_ROLE_OF_MASTER = {"master": "chief"}
_GROUPS = "SM_RESOURCE_CONFIG: instance_groups"


def _by_rank(ranked: Sequence[str], rank: int, sizes: Sizes | None, hosts_name: str, rank_name: str) -> Claim:
    """Return a claim that assigns the ranks to the roles."""
    sizes = sizes or Sizes({"worker": len(ranked)}, hosts_name)
    counts = dict(sorted(sizes.counts.items()))
    if sum(counts.values()) != len(ranked):
        problem = f"says {len(ranked)} tasks, but {sizes.said_by} says {sizes}"
        raise ConfigError(
            hosts_name, problem, remedy=f"Start {sum(counts.values())} tasks, or change the latter"
        )
    if rank >= len(ranked):
        raise ConfigError(
            rank_name, expected=f"a rank below {len(ranked)} ({hosts_name})", received=str(rank)
        )
    ends = accumulate(counts.values())
    addresses = {
        role: list(ranked[end - size : end]) for (role, size), end in zip(counts.items(), ends, strict=True)
    }
    members = [(role, i) for role, hosts in addresses.items() for i in range(len(hosts))]
    return Claim(Source(hosts_name), addresses, members[rank], Source(rank_name))


def _object(value: Mapping[str, Any], key: str, source: Source) -> dict[str, Any]:
    part = value.get(key, {})
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ConfigError(source.at(key), expected="a JSON object", received=shown(part))
    return part


def _task(task: Mapping[str, Any], source: Source, roles: Mapping[str, str]) -> tuple[str, int] | None:
    if not task or task.get("type") in (None, ""):
        return None
    type_, index = task["type"], task.get("index", 0)
    if not isinstance(type_, str):
        raise ConfigError(source.at("type"), expected="a text", received=shown(type_))
    # Some schedulers write the index as a text; TensorFlow's resolver accepts that too.
    if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index):
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise ConfigError(source.at("index"), expected="a whole number", received=shown(index))
    return roles.get(type_, type_), index


def _names(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ConfigError(where, expected="a JSON list of host names", received=shown(value))
    return sorted(value)


def _required(environ: Mapping[str, str], name: str, because: str) -> str:
    if not environ.get(name):
        raise ConfigError(name, f"is not set, though {because} is")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, *, least: int = 0, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ConfigError(name, expected=f"a whole number, {least} or more", received=shown(text))
    return int(text)
