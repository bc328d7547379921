"""Read CLUSTER_SPEC, Vertex AI's variable."""

from typing import ClassVar

from tfdist._utils.yaml import read_json
from tfdist.cluster.roles import ROLES, Sizes
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, json_object, read_task
from tfdist.errors import ConfigError, did_you_mean

__all__ = ["VertexAI"]


class VertexAI(Scheduler):
    """CLUSTER_SPEC, in which Vertex AI numbers its pools: chief, workers, servers, evaluators."""

    name = "Vertex AI's CLUSTER_SPEC"
    _ROLE_OF_POOL: ClassVar = {f"workerpool{i}": role for i, role in enumerate(ROLES)}

    @property
    def present(self) -> bool:
        """Return whether CLUSTER_SPEC is set."""
        return bool(self._environ.get("CLUSTER_SPEC", "").strip())

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        """Return the cluster of its pools, and the task of its `task`."""
        document = read_json(self._environ["CLUSTER_SPEC"], "CLUSTER_SPEC")
        cluster = document.source.inside("cluster")
        pools = json_object(document.value, "cluster", document.source)
        for pool in pools:
            if pool not in self._ROLE_OF_POOL:
                raise ConfigError(
                    cluster.at(pool), "unknown pool", remedy=did_you_mean(pool, self._ROLE_OF_POOL)
                )
        addresses = {self._ROLE_OF_POOL[pool]: hosts for pool, hosts in pools.items()}
        task = json_object(document.value, "task", document.source)
        source = document.source.inside("task")
        return Claim(cluster, addresses, read_task(task, source, self._ROLE_OF_POOL), source, has_ports=True)
