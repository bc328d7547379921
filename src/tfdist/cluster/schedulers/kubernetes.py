"""Read the variables of an indexed Job's pods on Kubernetes."""

from collections.abc import Mapping

from tfdist._utils.read_yaml_and_json import Source
from tfdist.cluster.roles_and_task_counts import DEFAULT_PORT, TaskCounts
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, by_rank
from tfdist.errors import ConfigError, shown


class Kubernetes(Scheduler):
    """JOB_COMPLETION_INDEX of an indexed Job, with the headless service that resolves its pods' names.

    Job: TFDIST_SERVICE names the service. A pod's name is this pod's HOSTNAME with the pod's own index.
    Jobs, one for each role: REPLICATED_JOB_NAME is the role, and HOSTNAME ends in the role and the index.
    JobSet: JOBSET_NAME and REPLICATED_JOB_NAME (set them by the downward API) make up the names. The
    replicated jobs are the roles, and the service is TFDIST_SERVICE or the JobSet's own.
    """

    name = "Kubernetes' JOB_COMPLETION_INDEX"

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self._jobset = environ.get("JOBSET_NAME", "")
        self._service = environ.get("TFDIST_SERVICE", "") or self._jobset

    @property
    def present(self) -> bool:
        """Return whether this is a pod of an indexed Job with a service."""
        # Without a service, the pods of an indexed Job cannot reach each other, so each trains alone.
        return bool(self._environ.get("JOB_COMPLETION_INDEX") and self._service)

    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return the cluster of the pods, whose names differ in index and role."""
        index = self._number("JOB_COMPLETION_INDEX")
        if counts is None:
            problem = "Kubernetes tells a pod its index, and not how many pods there are"
            remedy = "Set TFDIST_ROLES=worker=4, or write `cluster: {worker: 4}` into the config"
            raise ConfigError("JOB_COMPLETION_INDEX", problem, remedy=remedy)
        port = port or DEFAULT_PORT
        role = self._environ.get("REPLICATED_JOB_NAME", "")
        if not self._jobset and not role:
            stem = self._stem(f"-{index}")
            ranked = [f"{stem}-{i}.{self._service}:{port}" for i in range(sum(counts.by_role.values()))]
            return by_rank(ranked, index, counts, "TFDIST_SERVICE", "JOB_COMPLETION_INDEX")
        self._required("REPLICATED_JOB_NAME", "JOBSET_NAME")
        # A JobSet numbers the Jobs of a role, and here there is one.
        start, middle = (self._jobset, "-0") if self._jobset else (self._stem(f"-{role}-{index}"), "")
        addresses = {
            job: [f"{start}-{job}{middle}-{i}.{self._service}:{port}" for i in range(size)]
            for job, size in counts.by_role.items()
            if size
        }
        source = Source("REPLICATED_JOB_NAME, JOB_COMPLETION_INDEX")
        name = "JOBSET_NAME" if self._jobset else "TFDIST_SERVICE"
        return Claim(Source(name), addresses, (role, index), source)

    def _stem(self, ending: str) -> str:
        """Return the part of this pod's name that all pods share."""
        hostname = self._required("HOSTNAME", "JOB_COMPLETION_INDEX")
        stem = hostname.removesuffix(ending)
        if not stem or stem == hostname:
            expected = f"the pod's name, ending in {ending}"
            raise ConfigError("HOSTNAME", expected=expected, received=shown(hostname))
        return stem
