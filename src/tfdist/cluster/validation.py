"""Check that addresses, counts and a task make a cluster that TensorFlow can start.

Each check raises a `ConfigError` that names the place (by its `Source`), what was expected, what was
received, and the remedy.
"""

import re
from collections.abc import Mapping, Sequence

from tfdist._utils.read_yaml_and_json import Source
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.roles_and_task_counts import ROLES, TaskCounts
from tfdist.errors import ConfigError, did_you_mean, is_near, shown

_ALONE = ("chief", "evaluator")
_MOST_TASKS = 1000
_JOB = re.compile(r"[a-z][a-z0-9_]{0,62}")  # the names that device strings such as /job:NAME/task:0 allow

Addresses = Mapping[str, tuple[str, ...]]


def check_role(role: object, where: str, jobs: Sequence[str] = ()) -> None:
    """Check that a role is known, or is one of a cluster's other jobs."""
    known = (*ROLES, *jobs)
    if role not in known:
        raise ConfigError(where, f"unknown role {shown(role)}", remedy=did_you_mean(role, known))


def check_name(name: str, where: str) -> None:
    """Check that a text is a role or can name a job, and is no misspelled role."""
    if name in ROLES:
        return
    if any(is_near(name, role) for role in ROLES):
        check_role(name, where)
    if not _JOB.fullmatch(name):
        expected = "a job's name: a lowercase letter, then lowercase letters, digits and _"
        raise ConfigError(where, expected=expected, received=shown(name))


def checked_jobs(value: object, source: Source) -> dict[str, tuple[str, ...]]:
    """Return the checked addresses of the jobs that are not roles."""
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        jobs: dict[str, object] = dict(pairs)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        expected = "addresses by the name of the job"
        raise ConfigError(source.at("jobs"), expected=expected, received=shown(value)) from None
    for name in jobs:
        if not isinstance(name, str):
            raise ConfigError(source.at("jobs"), expected="a job's name", received=shown(name))
        if name in ROLES:
            problem = "is a role; another job needs another name"
            raise ConfigError(
                source.at(name), problem, remedy=f"Pass its addresses as {name}, outside of jobs"
            )
        check_name(name, source.at(name))
    checked = {name: checked_addresses(jobs[name], name, source) for name in sorted(jobs)}
    return {name: addresses for name, addresses in checked.items() if addresses}


def checked_addresses(value: object, role: str, source: Source) -> tuple[str, ...]:
    """Return the checked addresses of one role, each of the form host:port."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(source.at(role), expected="a list of host:port", received=shown(value))
    for index, address in enumerate(value):
        try:
            split_address(address)
        except ValueError as error:
            received = f"{shown(address)}, {error}"
            raise ConfigError(source.at(role, index), expected="host:port", received=received) from None
    if len(value) > 1 and role in _ALONE:
        remedy = "Keep one; the others can be workers" if role == "chief" else "Keep one"
        raise ConfigError(source.at(role), expected=f"one {role}", received=str(len(value)), remedy=remedy)
    return tuple(value)


def check_cluster(addresses: Addresses, source: Source) -> None:
    """Check that a cluster has the roles that training needs, and no address twice."""
    if not addresses["worker"] and addresses["ps"]:
        problem = f"{len(addresses['ps'])} ps without a worker"
        raise ConfigError(source.at(), problem, remedy="Add worker: addresses")
    others = [name for name in addresses if name not in ROLES]
    if others and not addresses["chief"]:
        problem = f"{others[0]} without a chief, which must connect to it"
        raise ConfigError(source.at(), problem, remedy="Add chief: an address")
    if not addresses["worker"] and not addresses["chief"] and addresses["evaluator"]:
        problem = "no worker: the evaluator is outside the training cluster"
        raise ConfigError(source.at(), problem, remedy="Add worker: addresses")
    first: dict[tuple[str, int], str] = {}
    placed = [(role, index, address) for role in addresses for index, address in enumerate(addresses[role])]
    for role, index, address in placed:
        task = f"{role}:{index}"
        other = first.setdefault(split_address(address), task)
        if other != task:
            remedy = "Assign another port to one of them"
            if role == "evaluator":
                remedy = "The evaluator is outside the training cluster: give it an address of its own"
            problem = f"{shown(address)} is also the address of {other}"
            raise ConfigError(source.at(role, index), problem, remedy=remedy)


def check_task(type_: object, index: object, addresses: Addresses, source: Source, where: str) -> None:
    """Check that a task belongs to the cluster."""
    if not isinstance(type_, str) or not isinstance(index, int) or isinstance(index, bool):
        received = f"{shown(type_)} and {shown(index)}"
        raise ConfigError(where, expected="a role and an index", received=received)
    check_role(type_, where, [name for name in addresses if name not in ROLES])
    if (type_, index) == ("evaluator", 0) and not addresses["evaluator"]:
        return  # as in TensorFlow, an evaluator needs no address, because no task connects to it
    count = len(addresses[type_])
    if not count:
        known = ", ".join(role for role in addresses if addresses[role]) or "none"
        raise ConfigError(where, expected=f"a role of the cluster ({known})", received=shown(type_))
    if not 0 <= index < count:
        expected = f"an index in 0…{count - 1} ({source.at(type_)} lists {count})"
        raise ConfigError(where, expected=expected, received=str(index))


def checked_counts(counts: Mapping[str, int], source: Source) -> dict[str, int]:
    """Return the number of tasks of each role, after checking that training can use them."""
    for role, count in counts.items():
        check_name(role, source.at())
        most = 1 if role in _ALONE else _MOST_TASKS
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
            raise ConfigError(
                source.at(role), expected=f"a number of tasks in 0…{most}", received=shown(count)
            )
    if counts and not counts.get("worker") and not (counts.get("chief") and not counts.get("ps")):
        raise ConfigError(source.at("worker"), "the cluster has no worker", remedy="Set one or more")
    return dict(counts)


def check_same_task_counts(counts: TaskCounts, wanted: TaskCounts) -> None:
    """Check that two sources state the same number of tasks of each role."""
    # A training task's TF_CONFIG leaves the evaluator out.
    roles = {*counts.by_role, *wanted.by_role} - {"evaluator"}
    if any(counts.by_role.get(role, 0) != wanted.by_role.get(role, 0) for role in roles):
        problem = f"says {wanted}, but {counts.said_by} says {counts}"
        raise ConfigError(wanted.said_by, problem, remedy="Correct the one that is wrong, or unset it")
