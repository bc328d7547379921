"""Read the variables that Open MPI's mpirun sets."""

from tfdist.cluster.roles_and_task_counts import DEFAULT_PORT, TaskCounts
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, by_rank
from tfdist.cluster.schedulers.slurm import expand_hosts
from tfdist.errors import ConfigError


class OpenMPI(Scheduler):
    """mpirun's OMPI_COMM_WORLD_*, with the hosts of TFDIST_HOSTS or of Slurm's allocation.

    Open MPI tells a process its rank and the number of ranks, but not the hosts of the others.
    """

    name = "Open MPI's OMPI_COMM_WORLD_SIZE"

    @property
    def present(self) -> bool:
        """Return whether mpirun started this process."""
        return bool(self._environ.get("OMPI_COMM_WORLD_SIZE"))

    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return a task for each rank."""
        size = self._number("OMPI_COMM_WORLD_SIZE", least=1)
        rank = self._number("OMPI_COMM_WORLD_RANK")
        slots = self._number("OMPI_COMM_WORLD_LOCAL_SIZE", least=1)
        local = self._number("OMPI_COMM_WORLD_LOCAL_RANK")
        name, hosts = self._hosts(one=slots == size)
        if len(hosts) * slots != size or rank % slots != local:
            expected = f"{slots} ranks in turn on each of the {len(hosts)} hosts of {name}"
            received = f"rank {rank} of {size}, the {local}th here"
            remedy = "Use `mpirun --map-by slot` with as many slots on each host"
            raise ConfigError("OMPI_COMM_WORLD_SIZE", expected=expected, received=received, remedy=remedy)
        ranked = [f"{host}:{(port or DEFAULT_PORT) + i}" for host in hosts for i in range(slots)]
        return by_rank(ranked, rank, counts, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

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
