"""Read TF_CONFIG, TensorFlow's own variable."""

from tfdist._utils.yaml import read_json
from tfdist.cluster.roles import Sizes
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, json_object, read_task
from tfdist.errors import ConfigError

__all__ = ["TfConfig"]

_ROLE_OF_MASTER = {"master": "chief"}


class TfConfig(Scheduler):
    """TF_CONFIG, TensorFlow's own variable; the old name `master` means chief."""

    name = "TF_CONFIG"

    @property
    def present(self) -> bool:
        """Return whether TF_CONFIG is set."""
        return bool(self._environ.get("TF_CONFIG", "").strip())

    def claim(self, sizes: Sizes | None = None, port: int | None = None) -> Claim:
        """Return the cluster of its `cluster`, and the task of its `task`."""
        document = read_json(self._environ["TF_CONFIG"], self.name)
        roles = json_object(document.value, "cluster", document.source)
        task = json_object(document.value, "task", document.source)
        cluster = document.source.inside("cluster")
        addresses = {_ROLE_OF_MASTER.get(role, role): hosts for role, hosts in roles.items()}
        if len(addresses) < len(roles):
            raise ConfigError(
                cluster.at(), "has both master and chief", remedy="Keep one: they mean the same"
            )
        source = document.source.inside("task")
        return Claim(cluster, addresses, read_task(task, source, _ROLE_OF_MASTER), source, has_ports=True)
