"""Read SageMaker's SM_HOSTS, SM_CURRENT_HOST and SM_RESOURCE_CONFIG."""

from tfdist._utils.read_yaml_and_json import Source, read_json
from tfdist.cluster.roles_and_task_counts import DEFAULT_PORT, ROLES, TaskCounts
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, by_rank
from tfdist.errors import ConfigError, shown

_GROUPS = "SM_RESOURCE_CONFIG: instance_groups"


class SageMaker(Scheduler):
    """SM_HOSTS and SM_CURRENT_HOST, or SM_RESOURCE_CONFIG, which must agree with them.

    In a heterogeneous cluster, SM_RESOURCE_CONFIG has instance groups. Groups whose names are roles have
    the tasks of these roles.
    """

    name = "SageMaker's SM_HOSTS"

    @property
    def present(self) -> bool:
        """Return whether one of the variables with the hosts is set."""
        return any(self._environ.get(name, "").strip() for name in ("SM_HOSTS", "SM_RESOURCE_CONFIG"))

    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return a task on each host."""
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
        return by_rank(ranked, hosts.index(host), counts, "SM_HOSTS", "SM_CURRENT_HOST")

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
            stated["SM_HOSTS"] = hosts, self._required("SM_CURRENT_HOST", "SM_HOSTS")
        if len(stated) == 2 and stated["SM_HOSTS"] != stated["SM_RESOURCE_CONFIG"]:
            ours, theirs = ("{} on {}".format(*stated[name]) for name in ("SM_HOSTS", "SM_RESOURCE_CONFIG"))
            problem = f"says {ours}, but SM_RESOURCE_CONFIG says {theirs}"
            raise ConfigError("SM_HOSTS", problem, remedy="Unset the wrong one")
        return next(iter(stated.values()))


def _names(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ConfigError(where, expected="a JSON list of host names", received=shown(value))
    return sorted(value)
