"""Read TF_CONFIG, TensorFlow's own variable, and CLUSTER_SPEC, Vertex AI's variable of the same form."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tfdist._utils.read_yaml_and_json import Source, read_json
from tfdist.cluster.roles_and_task_counts import ROLES, TaskCounts
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler
from tfdist.errors import ConfigError, did_you_mean, shown


class TfConfig(Scheduler):
    """TF_CONFIG, TensorFlow's own variable; the old name `master` means chief."""

    name = "TF_CONFIG"
    _variable = "TF_CONFIG"
    _roles: ClassVar[Mapping[str, str]] = {"master": "chief"}

    @property
    def present(self) -> bool:
        """Return whether the variable is set."""
        return bool(self._environ.get(self._variable, "").strip())

    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return the cluster of its `cluster`, and the task of its `task`."""
        document = read_json(self._environ[self._variable], self._variable)
        named = _json_object(document.value, "cluster", document.source)
        cluster, source = document.source.inside("cluster"), document.source.inside("task")
        self._check(named, cluster)
        addresses = {self._roles.get(name, name): hosts for name, hosts in named.items()}
        task = _read_task(_json_object(document.value, "task", document.source), source, self._roles)
        return Claim(cluster, addresses, task, source, has_ports=True)

    def _check(self, named: Mapping[str, Any], cluster: Source) -> None:
        if {"master", "chief"} <= {*named}:
            problem = "has both master and chief"
            raise ConfigError(cluster.at(), problem, remedy="Keep one: they mean the same")


class VertexAI(TfConfig):
    """CLUSTER_SPEC, in which Vertex AI numbers its pools: chief, workers, servers, evaluators."""

    name = "Vertex AI's CLUSTER_SPEC"
    _variable = "CLUSTER_SPEC"
    _roles: ClassVar[Mapping[str, str]] = {f"workerpool{i}": role for i, role in enumerate(ROLES)}

    def _check(self, named: Mapping[str, Any], cluster: Source) -> None:
        for pool in named:
            if pool not in self._roles:
                raise ConfigError(cluster.at(pool), "unknown pool", remedy=did_you_mean(pool, self._roles))


def _json_object(value: Mapping[str, Any], key: str, source: Source) -> dict[str, Any]:
    """Return the JSON object at a key; empty without the key."""
    part = value.get(key, {})
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ConfigError(source.at(key), expected="a JSON object", received=shown(part))
    return part


def _read_task(task: Mapping[str, Any], source: Source, roles: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the role and index of a `task` object; None if it names no task."""
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
