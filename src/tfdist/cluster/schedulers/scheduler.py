"""Define how a scheduler's variables are read, and read the values that several schedulers have."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

from tfdist._utils.read_yaml_and_json import Source
from tfdist.cluster.roles_and_task_counts import TaskCounts
from tfdist.errors import ConfigError, shown


class Claim(NamedTuple):
    """The cluster by one scheduler's variables: its addresses, and the task that this process is."""

    source: Source
    addresses: Mapping[str, Sequence[str]]
    task: tuple[str, int] | None
    task_source: Source
    has_ports: bool = False  # whether the variables state the ports; otherwise tfdist chose them


class Scheduler(ABC):
    """The variables of one scheduler; `name` is for messages."""

    name: ClassVar[str]

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    @abstractmethod
    def present(self) -> bool:
        """Return whether the variables are set."""

    @abstractmethod
    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return the cluster that the variables describe.

        Raises:
            ConfigError: The variables are malformed or contradict each other.
        """

    def _required(self, name: str, because: str) -> str:
        if not self._environ.get(name):
            raise ConfigError(name, f"is not set, though {because} is")
        return self._environ[name]

    def _number(self, name: str, *, least: int = 0, default: int | None = None) -> int:
        text = self._environ.get(name, "" if default is None else str(default))
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise ConfigError(name, expected=f"a whole number, {least} or more", received=shown(text))
        return int(text)


def by_rank(
    ranked: Sequence[str],
    rank: int,
    counts: TaskCounts | None,
    hosts_name: str,
    rank_name: str,
    more_remedy: str = "",
) -> Claim:
    """Return a claim that assigns the ranks to the roles.

    Raises:
        ConfigError: The numbers differ; the remedy ends with `more_remedy`.
    """
    counts = counts or TaskCounts({"worker": len(ranked)}, hosts_name)
    by_role = dict(sorted(counts.by_role.items()))
    if (total := sum(by_role.values())) != len(ranked):
        problem = f"says {len(ranked)} tasks, but {counts.said_by} says {counts}"
        remedy = ". ".join(filter(None, [f"Start {total} tasks, or change the latter", more_remedy]))
        raise ConfigError(hosts_name, problem, remedy=remedy)
    if rank >= len(ranked):
        raise ConfigError(
            rank_name, expected=f"a rank below {len(ranked)} ({hosts_name})", received=str(rank)
        )
    ends = accumulate(by_role.values())
    addresses = {
        role: list(ranked[end - size : end]) for (role, size), end in zip(by_role.items(), ends, strict=True)
    }
    members = [(role, i) for role, hosts in addresses.items() for i in range(len(hosts))]
    return Claim(Source(hosts_name), addresses, members[rank], Source(rank_name))
