"""Read SkyPilot's SKYPILOT_NODE_IPS and SKYPILOT_NODE_RANK."""

from tfdist.cluster.roles_and_task_counts import DEFAULT_PORT, TaskCounts
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, by_rank
from tfdist.errors import ConfigError


class SkyPilot(Scheduler):
    """SKYPILOT_NODE_IPS and SKYPILOT_NODE_RANK: a task on each of several nodes."""

    name = "SkyPilot's SKYPILOT_NODE_IPS"

    @property
    def present(self) -> bool:
        """Return whether there are several nodes."""
        # On a single node, a cluster is one of this machine.
        return len(self._environ.get("SKYPILOT_NODE_IPS", "").split()) > 1

    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return a task on each node."""
        hosts = self._environ["SKYPILOT_NODE_IPS"].split()
        self._required("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
        rank = self._number("SKYPILOT_NODE_RANK")
        stated = self._number("SKYPILOT_NUM_NODES", default=len(hosts))
        if stated != len(hosts):
            raise ConfigError("SKYPILOT_NUM_NODES", f"says {stated}, but SKYPILOT_NODE_IPS has {len(hosts)}")
        ranked = [f"{host}:{port or DEFAULT_PORT}" for host in hosts]
        return by_rank(ranked, rank, counts, "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")
