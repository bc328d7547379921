"""Run a cluster as a TrainJob of Kubeflow Trainer (v2), with a ClusterTrainingRuntime of its own.

Trainer has no runtime for TensorFlow. This one is a JobSet with a replicated job for each role. The role that
leads is the trainer, because Trainer tells only its pods where to report the progress.
"""

from tfdist.engines.jobset import jobset_spec
from tfdist.engines.kubernetes_engine import KubernetesEngine
from tfdist.engines.kubernetes_objects import RUNS, Application, Object

__all__ = ["TrainJob"]

_API = "trainer.kubeflow.org/v1alpha1"
_RUNTIME = "ClusterTrainingRuntime"
_CONTAINER = "node"  # so Trainer calls the container that a TrainJob may change


class TrainJob(KubernetesEngine):
    """TrainJob and its runtime."""

    name = "trainjob"
    kinds = ("trainjob", "clustertrainingruntime")

    def objects(self, application: Application) -> list[Object]:
        """Return the runtime, and the TrainJob that uses it."""
        nodes = application.job.counts[application.lead]
        # Every TrainJob of the runtime has a folder of its own.
        run_dir = application.run_dir if application.job.is_single else f"{RUNS}/$(JOBSET_NAME)"
        spec = jobset_spec(application, _CONTAINER, run_dir)
        for replicated in spec["replicatedJobs"]:
            if replicated["name"] == application.lead:
                labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                replicated["template"]["metadata"] = {"labels": labels}
        runtime = application.object(
            _API, _RUNTIME, spec={"mlPolicy": {"numNodes": nodes}, "template": {"spec": spec}}
        )
        del runtime["metadata"]["namespace"]
        runtime["metadata"]["labels"] = {**application.labels, "trainer.kubeflow.org/framework": "tensorflow"}
        reference = {"apiGroup": "trainer.kubeflow.org", "kind": _RUNTIME, "name": application.name}
        job = {"runtimeRef": reference, "trainer": {"numNodes": nodes}}
        return [runtime, application.object(_API, "TrainJob", spec=job)]
