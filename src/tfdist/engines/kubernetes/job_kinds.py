"""Run a cluster on Kubernetes: as indexed Jobs, a JobSet, a TFJob, or a TrainJob.

Each role has a Job of its own, because ps tasks need other machines than workers do.
"""

from collections.abc import Mapping

from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.kubernetes.engine_base import KubectlEngine
from tfdist.engines.kubernetes.objects import RUNS, Application, Object
from tfdist.errors import ConfigError

_LABELS = {"JOBSET_NAME": "jobset-name", "REPLICATED_JOB_NAME": "replicatedjob-name"}
_REPLICAS = {"chief": "Chief", "evaluator": "Evaluator", "ps": "PS", "worker": "Worker"}  # by TFJob's names
_TRAINER = "trainer.kubeflow.org"
_RUNTIME = "ClusterTrainingRuntime"
_TRAINER_CONTAINER = "node"  # so Trainer calls the container that a TrainJob may change


class Kubernetes(KubectlEngine):
    """Kubernetes as it is: an indexed Job for each role, and a headless service.

    The tasks find each other by the names of their pods. Those that serve the chief end with 0 after it.
    """

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


class JobSet(KubectlEngine):
    """JobSet of the Kubernetes project, which starts all tasks again together after a loss."""

    name = "jobset"
    kinds = ("jobset",)

    def objects(self, application: Application) -> list[Object]:
        """Return the JobSet."""
        spec = _jobset_spec(application, "main", application.run_dir)
        return [application.object("jobset.x-k8s.io/v1alpha2", "JobSet", spec=spec)]


class TFJob(KubectlEngine):
    """TFJob of Kubeflow's Training Operator (v1), which sets TF_CONFIG, and starts lost tasks one by one."""

    name = "tfjob"
    kinds = ("tfjob",)

    def objects(self, application: Application) -> list[Object]:
        """Return the TFJob."""
        counts = application.job.counts
        if others := sorted({*counts} - {*_REPLICAS}):
            expected = f"only {', '.join(_REPLICAS)}, which TFJob knows"
            raise ConfigError("cluster.jobs", expected=expected, received=others[0])
        replicas = {
            _REPLICAS[role]: {
                "replicas": count,
                # 1 to 127 fail the job, and 128 to 255, so 138 too, start the task again.
                "restartPolicy": "ExitCode",
                "template": application.pod(role, "tensorflow"),
            }
            for role, count in sorted(counts.items())
        }
        # The job has succeeded when the chief has; an evaluator still has its last checkpoint to evaluate.
        cleans = "None" if "evaluator" in counts else "Running"
        policy = {"cleanPodPolicy": cleans, "backoffLimit": application.section.restarts}
        spec = {"runPolicy": policy, "tfReplicaSpecs": replicas}
        return [application.object("kubeflow.org/v1", "TFJob", spec=spec)]


class TrainJob(KubectlEngine):
    """TrainJob of Kubeflow Trainer (v2), with a ClusterTrainingRuntime of its own.

    Trainer has no runtime for TensorFlow. This one is a JobSet. The role that leads is the trainer, because
    Trainer tells only its pods where to report the progress.
    """

    name = "trainjob"
    kinds = ("trainjob", "clustertrainingruntime")

    def objects(self, application: Application) -> list[Object]:
        """Return the runtime, and the TrainJob that uses it."""
        nodes = application.job.counts[application.lead]
        # Every TrainJob of the runtime has a folder of its own.
        has_name = application.job.is_single or application.job.run
        run_dir = application.run_dir if has_name else f"{RUNS}/$(JOBSET_NAME)"
        spec = _jobset_spec(application, _TRAINER_CONTAINER, run_dir)
        for replicated in spec["replicatedJobs"]:
            if replicated["name"] == application.lead:
                labels = {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}
                replicated["template"]["metadata"] = {"labels": labels}
        template = {"mlPolicy": {"numNodes": nodes}, "template": {"spec": spec}}
        runtime = application.object(f"{_TRAINER}/v1alpha1", _RUNTIME, spec=template)
        del runtime["metadata"]["namespace"]
        runtime["metadata"]["labels"][f"{_TRAINER}/framework"] = "tensorflow"
        reference = {"apiGroup": _TRAINER, "kind": _RUNTIME, "name": application.name}
        job = {"runtimeRef": reference, "trainer": {"numNodes": nodes}}
        return [runtime, application.object(f"{_TRAINER}/v1alpha1", "TrainJob", spec=job)]


def _job(application: Application, role: str) -> Object:
    variables = [
        {"name": "TFDIST_SERVICE", "value": application.name},
        {"name": "REPLICATED_JOB_NAME", "value": role},
    ]
    pod = application.pod(role, "main", variables, service=True)
    job = application.object("batch/v1", "Job")
    job["metadata"]["name"] += f"-{role}"
    return {**job, "spec": application.job_spec(role, pod, restarts=application.section.restarts)}


def _jobset_spec(application: Application, container: str, run_dir: str) -> Object:
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
