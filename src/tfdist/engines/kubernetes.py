"""Run a cluster on Kubernetes as it is: an indexed Job for each role, and a headless service.

Each role has a Job of its own, because ps tasks need other machines than workers do. The tasks find each
other by the names of their pods. Those that serve the chief end with 0 when it has ended.
"""

from collections.abc import Mapping

from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.kubernetes_engine import KubernetesEngine
from tfdist.engines.kubernetes_objects import Application, Object

__all__ = ["Kubernetes"]


class Kubernetes(KubernetesEngine):
    """Indexed Jobs."""

    name = "kubernetes"
    kinds = ("job", "service")

    def objects(self, application: Application) -> list[Object]:
        """Return the service, and a Job for each role."""
        return [application.service(), *(_job(application, role) for role in sorted(application.job.counts))]

    def watched(self, submission: Submission) -> Mapping[str, bool]:
        """Return the Jobs; those of the chief, or else of the workers, and of the evaluator decide."""
        roles = sorted({task.partition(":")[0] for task in submission.tasks})
        deciding = ("chief" if "chief" in roles else "worker", "evaluator")
        return {f"job/{submission.handle.number}-{role}": role in deciding for role in roles}


def _job(application: Application, role: str) -> Object:
    variables = [
        {"name": "TFDIST_SERVICE", "value": application.name},
        {"name": "REPLICATED_JOB_NAME", "value": role},
    ]
    pod = application.pod(role, "main", variables, service=True)
    job = application.object("batch/v1", "Job")
    job["metadata"]["name"] += f"-{role}"
    restarts = application.section.restarts
    return {**job, "spec": application.job_spec(role, pod, restarts=restarts)}
