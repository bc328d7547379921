"""Run a cluster as a TFJob of Kubeflow's Training Operator (v1), which sets TF_CONFIG."""

from tfdist.engines.kubernetes_engine import KubernetesEngine
from tfdist.engines.kubernetes_objects import Application, Object
from tfdist.errors import ConfigError

__all__ = ["TFJob"]

_TYPES = {"chief": "Chief", "evaluator": "Evaluator", "ps": "PS", "worker": "Worker"}


class TFJob(KubernetesEngine):
    """TFJob, which starts lost tasks again one by one."""

    name = "tfjob"
    kinds = ("tfjob",)

    def objects(self, application: Application) -> list[Object]:
        """Return the TFJob."""
        counts = application.job.counts
        if others := sorted({*counts} - {*_TYPES}):
            expected = f"only {', '.join(_TYPES)}, which TFJob knows"
            raise ConfigError("cluster.jobs", expected=expected, received=others[0])
        replicas = {
            _TYPES[role]: {
                "replicas": count,
                # 1 to 127 fail the job, and 128 to 255, so 138 too, start the task again.
                "restartPolicy": "ExitCode",
                "template": application.pod(role, "tensorflow"),
            }
            for role, count in sorted(counts.items())
        }
        policy = {"cleanPodPolicy": "Running", "backoffLimit": application.section.restarts}
        spec = {"runPolicy": policy, "tfReplicaSpecs": replicas}
        return [application.object("kubeflow.org/v1", "TFJob", spec=spec)]
