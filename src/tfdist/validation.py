"""Check that addresses, counts and a task make a cluster that TensorFlow can start.

Each check raises a `ConfigError` that names the place (by its `Source`), what was expected, what was
received, and the remedy.
"""

import re
from collections.abc import Mapping, Sequence

from tfdist.addresses import split_address
from tfdist.documents import Source
from tfdist.environments import ROLES, Sizes
from tfdist.errors import ConfigError, did_you_mean, is_near, shown

__all__ = [
    "check_cluster",
    "check_name",
    "check_role",
    "check_same_sizes",
    "check_task",
    "checked_addresses",
    "checked_counts",
    "checked_jobs",
]

_ALONE = ("chief", "evaluator")
_MOST_TASKS = 1000
_JOB = re.compile(r"[a-z][a-z0-9_]{0,62}")  # what device strings such as /job:NAME/task:0 can hold

Addresses = Mapping[str, tuple[str, ...]]


def check_role(role: object, where: str, jobs: Sequence[str] = ()) -> None:
    """Refuse what is neither a role nor one of a cluster's other jobs."""
    known = (*ROLES, *jobs)
    if role not in known:
        raise ConfigError(where, f"unknown role {shown(role)}", remedy=did_you_mean(role, known))


def check_name(name: str, where: str) -> None:
    """Refuse what cannot be the name of a job, and what is a slip for a role."""
    if name in ROLES:
        return
    if any(is_near(name, role) for role in ROLES):
        check_role(name, where)
    if not _JOB.fullmatch(name):
        expected = "a job's name: a small letter, then small letters, digits and _"
        raise ConfigError(where, expected=expected, received=shown(name))


def checked_jobs(value: object, source: Source) -> dict[str, tuple[str, ...]]:
    """Give the addresses of the jobs that have names of their own."""
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
            problem = "is a role, and no other job's name"
            raise ConfigError(source.at(name), problem, remedy=f"Give its addresses as {name}")
        check_name(name, source.at(name))
    found = {name: checked_addresses(jobs[name], name, source) for name in sorted(jobs)}
    return {name: addresses for name, addresses in found.items() if addresses}


def checked_addresses(value: object, role: str, source: Source) -> tuple[str, ...]:
    """Give the addresses of one role, each of the form host:port."""
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
    """Refuse a cluster that nobody could train on, and an address that stands twice."""
    if not addresses["worker"] and addresses["ps"]:
        problem = f"{len(addresses['ps'])} ps without a worker"
        raise ConfigError(source.at(), problem, remedy="Add worker: addresses")
    others = [name for name in addresses if name not in ROLES]
    if others and not addresses["chief"]:
        problem = f"{others[0]} without a chief, which would be the one to connect to it"
        raise ConfigError(source.at(), problem, remedy="Add chief: an address")
    if not addresses["worker"] and not addresses["chief"] and addresses["evaluator"]:
        problem = "no worker at all: the evaluator is no part of the training cluster"
        raise ConfigError(source.at(), problem, remedy="Add worker: addresses")
    first: dict[tuple[str, int], str] = {}
    for role, index, address in _each(addresses):
        task = f"{role}:{index}"
        other = first.setdefault(split_address(address), task)
        if other != task:
            remedy = "Give each task a port of its own"
            if role == "evaluator":
                remedy = "The evaluator is no part of the training cluster: give it an address of its own"
            raise ConfigError(source.at(role, index), f"{shown(address)} is {other} too", remedy=remedy)


def check_task(type_: object, index: object, addresses: Addresses, source: Source, where: str) -> None:
    """Refuse a task that is not of the cluster."""
    if not isinstance(type_, str) or not isinstance(index, int) or isinstance(index, bool):
        received = f"{shown(type_)} and {shown(index)}"
        raise ConfigError(where, expected="a role and an index", received=received)
    check_role(type_, where, [name for name in addresses if name not in ROLES])
    if (type_, index) == ("evaluator", 0) and not addresses["evaluator"]:
        return  # TensorFlow knows an evaluator that has no address, since nobody calls it
    count = len(addresses[type_])
    if not count:
        known = ", ".join(role for role in addresses if addresses[role]) or "none"
        raise ConfigError(where, expected=f"a role of the cluster ({known})", received=shown(type_))
    if not 0 <= index < count:
        expected = f"an index in 0…{count - 1} ({source.at(type_)} lists {count})"
        raise ConfigError(where, expected=expected, received=str(index))


def checked_counts(counts: Mapping[str, int], source: Source) -> dict[str, int]:
    """Give the number of tasks of each role, if they make a cluster."""
    for role, count in counts.items():
        check_name(role, source.at())
        most = 1 if role in _ALONE else _MOST_TASKS
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
            raise ConfigError(
                source.at(role), expected=f"a number of tasks in 0…{most}", received=shown(count)
            )
    if counts and not counts.get("worker") and not (counts.get("chief") and not counts.get("ps")):
        raise ConfigError(source.at("worker"), "no worker at all", remedy="Ask for one or more")
    return dict(counts)


def check_same_sizes(found: Sizes, wanted: Sizes) -> None:
    """Refuse two sources that count a role differently, naming both."""
    # A training task's TF_CONFIG leaves the evaluator out, and there is never more than one.
    roles = {*found.counts, *wanted.counts} - {"evaluator"}
    if any(found.counts.get(role, 0) != wanted.counts.get(role, 0) for role in roles):
        problem = f"says {wanted}, but {found.said_by} says {found}"
        raise ConfigError(wanted.said_by, problem, remedy="Correct the one that is wrong, or unset it")


def _each(addresses: Addresses) -> list[tuple[str, int, str]]:
    return [(role, index, address) for role in addresses for index, address in enumerate(addresses[role])]
