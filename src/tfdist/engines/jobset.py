"""Run a cluster as a JobSet, which starts all tasks again together after a loss."""

from tfdist.engines.kubernetes_engine import KubernetesEngine
from tfdist.engines.kubernetes_objects import Application, Object

__all__ = ["JobSet", "jobset_spec"]

_LABELS = {"JOBSET_NAME": "jobset-name", "REPLICATED_JOB_NAME": "replicatedjob-name"}


class JobSet(KubernetesEngine):
    """JobSet of the Kubernetes project."""

    name = "jobset"
    kinds = ("jobset",)

    def objects(self, application: Application) -> list[Object]:
        """Return the JobSet."""
        spec = jobset_spec(application, "main", application.run_dir)
        return [application.object("jobset.x-k8s.io/v1alpha2", "JobSet", spec=spec)]


def jobset_spec(application: Application, container: str, run_dir: str) -> Object:
    """Return the spec of a JobSet with a replicated job for each role."""
    roles = sorted(application.job.counts)
    deciding = [role for role in roles if role in (application.lead, "evaluator")]
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": deciding},
        "failurePolicy": {
            "maxRestarts": application.section.restarts,
            # A task that ends with a status other than 138 fails its Job by the policy of the Job. Without a
            # rule for it, a failed Job starts all tasks again.
            "rules": [
                {"name": "failed", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
            ],
        },
        "replicatedJobs": [_replicated(application, role, container, run_dir) for role in roles],
    }


def _replicated(application: Application, role: str, container: str, run_dir: str) -> Object:
    variables = [
        {
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['jobset.sigs.k8s.io/{label}']"}},
        }
        for name, label in _LABELS.items()
    ]
    pod = application.pod(role, container, variables, run_dir=run_dir)
    restarts = application.section.restarts if role in application.job.alone else 0
    return {
        "name": role,
        "replicas": 1,
        "template": {"spec": application.job_spec(role, pod, restarts=restarts)},
    }
