"""Describe a job as objects of Kubernetes: what indexed Jobs, JobSet, TFJob and TrainJob share.

Every engine adds an object of its own, which starts pods of the templates that `Application.pod` returns.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from tfdist.engines.container_entrypoint import ENTRYPOINT
from tfdist.engines.job_description import Job, without_references
from tfdist.engines.log_files_and_exit_status import saved_step_path
from tfdist.engines.options_into_section import merged
from tfdist.engines.restart_in_container import RESTARTS, SAVED_STEP_FILE
from tfdist.errors import LOST, ConfigError, shown
from tfdist.launcher.progress_for_engines import LOG_PROGRESS
from tfdist.trainer.sections.engine import KubernetesSection, ResourcesSection

Object = dict[str, Any]

INSTANCE = "app.kubernetes.io/instance"  # the label with the name of the job
ROLE = "app.kubernetes.io/component"  # the label with the role of a pod
_SHARED = "/tfdist"  # the volume, as pods see it
RUNS = f"{_SHARED}/runs"
_CONFIG = "/etc/tfdist"  # the ConfigMap, as pods see it
_CONFIG_KEY = "config.yaml"  # a key may not contain all that a file's name may
_SECRET = "TFDIST_SECRET"  # noqa: S105  # the name of the variable
_GRACE = 60  # seconds; a server serves for 25 s after SIGTERM, so that its chief can save
_SIGNALS = (134, 135, 137, 139, 143)  # exit statuses of tasks that a signal has killed
_PATHS = {
    "HOME": "/tmp",  # noqa: S108  # it belongs to the pod alone
    "TFDIST_CACHE_DIR": f"{_SHARED}/cache",
    "TFDS_DATA_DIR": f"{_SHARED}/tensorflow_datasets",
}


@dataclass(frozen=True)
class Application:
    """A job with a name of its own on Kubernetes.

    Attributes:
        job: The job.
        section: The section of the config, with the options of the command line.
        name: The name of its objects.
    """

    job: Job
    section: KubernetesSection
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels by which the objects of the job are found."""
        return {"app.kubernetes.io/name": "tfdist", INSTANCE: self.name}

    @property
    def lead(self) -> str:
        """Return the role whose first task leads and writes."""
        return "chief" if "chief" in self.job.counts else "worker"

    @property
    def run_dir(self) -> str:
        """Return the folder of the run, as pods see it."""
        return f"{RUNS}/{self.job.run or self.name}"

    def object(self, api: str, kind: str, **fields: Any) -> Object:
        """Return an object with the name, namespace and labels of the job."""
        labels = {**self.section.labels, **self.labels}
        metadata = {"name": self.name, "namespace": self.section.namespace, "labels": labels}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}

    @cached_property
    def common(self) -> list[Object]:
        """Return the objects beside the one that starts pods."""
        secret = {_SECRET: secrets.token_hex(32)}
        own = {"podSelector": {"matchLabels": self.labels}}
        policy = {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
        objects = [
            self.object("v1", "Secret", type="Opaque", immutable=True, stringData=secret),
            self.object("networking.k8s.io/v1", "NetworkPolicy", spec=policy),
        ]
        if self.job.config_text is not None:
            data = {_CONFIG_KEY: self.job.config_text}
            objects.append(self.object("v1", "ConfigMap", immutable=True, data=data))
        if self.section.volume.size is not None:
            objects.append(self._claim(self.section.volume.size))
        return objects

    def _claim(self, size: str) -> Object:
        """Return the claim, which has no label of the job, because it outlives it and is there for others."""
        volume = self.section.volume
        of_class = {} if volume.storage_class is None else {"storageClassName": volume.storage_class}
        resources = {"requests": {"storage": size}}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": volume.claim, "namespace": self.section.namespace},
            "spec": {"accessModes": [volume.access_mode], **of_class, "resources": resources},
        }

    def service(self) -> Object:
        """Return the service that resolves the names of all pods, also before they are ready."""
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": self.labels}
        return self.object("v1", "Service", spec=spec)

    def job_spec(self, role: str, pod: Object, *, restarts: int) -> Object:
        """Return the spec of the indexed Job with the tasks of a role.

        Args:
            role: The role.
            pod: The template of its pods.
            restarts: How often each pod is made again; with 0, the Job fails with the first lost pod.
        """
        counted = list(_SIGNALS) if role in self.job.alone else []
        known = sorted([LOST, *counted])
        rules = [
            # Evicted, or drained from its node: Kubernetes makes the pod again, without counting that.
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            # Told to end by somebody else. The pod itself starts a lost task again, and counts that.
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [LOST]}},
            *([{"action": "Count", "onExitCodes": {"operator": "In", "values": counted}}] if counted else []),
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": known}},
        ]
        count = self.job.counts[role]
        return {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            **(
                {"backoffLimitPerIndex": restarts, "maxFailedIndexes": 0} if restarts else {"backoffLimit": 0}
            ),
            "podFailurePolicy": {"rules": rules},
            "template": {**pod, "spec": {"restartPolicy": "Never", **pod["spec"]}},
        }

    def pod(
        self,
        role: str,
        container: str,
        variables: Sequence[Object] = (),
        *,
        service: bool = False,
        run_dir: str | None = None,
    ) -> Object:
        """Return the template of the pods of a role.

        Args:
            role: The role.
            container: The name of the container.
            variables: The variables that tell a pod its task.
            service: Whether the pods belong to the service of `service`.
            run_dir: The folder of the run, if the name of the job does not say it.
        """
        section, account = self.section, self.section.service_account
        optional = {
            "serviceAccountName": account,
            "nodeSelector": section.node_selector,
            "tolerations": [_given(toleration) for toleration in section.tolerations],
            "imagePullSecrets": [{"name": name} for name in section.image_pull_secrets],
            "subdomain": self.name if service else None,
        }
        spec = {
            "containers": [self._container(role, container, variables, run_dir or self.run_dir)],
            "volumes": self._volumes(),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": section.user,
                "runAsGroup": section.user,
                "fsGroup": section.user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "automountServiceAccountToken": account is not None,
            "enableServiceLinks": False,  # their variables could be taken for those of schedulers
            # Makes the pause process number 1. As number 1, a task would ignore SIGTERM while it loads.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": _GRACE,
            **{key: value for key, value in optional.items() if value},
        }
        labels = {**section.labels, **self.labels, ROLE: role}
        return {"metadata": {"labels": labels}, "spec": _with_more(spec, section.pod)}

    def _container(self, role: str, name: str, variables: Sequence[Object], run_dir: str) -> Object:
        if self.section.image is None:
            remedy = "Name one that contains tfdist and your modules: --option image=registry.example/train:1"
            raise ConfigError("engine.kubernetes.image", "is missing", remedy=remedy)
        place = self.job.address_of(Path(run_dir).name) if self.job.address else run_dir
        job = replace(self.job, command=tuple(map(without_references, self.job.command)))
        roles = {} if self.job.is_single else {"TFDIST_ROLES": self.job.roles}
        own = {
            **_PATHS,
            LOG_PROGRESS: "1",
            RESTARTS: str(self.section.restarts),
            SAVED_STEP_FILE: str(saved_step_path(Path(run_dir))),
        }
        values = {**own, **self.job.thread_variables, **roles, **self.section.env}
        secret = {"secretKeyRef": {"name": self.name, "key": _SECRET}}
        container: Object = {
            "name": name,
            "image": self.section.image,
            "command": [
                *ENTRYPOINT,
                *job.words(python="python", run_dir=place, config=f"{_CONFIG}/{_CONFIG_KEY}"),
            ],
            "env": [
                *(() if self.job.is_single else variables),
                *({"name": key, "value": value} for key, value in values.items()),
                {"name": _SECRET, "valueFrom": secret},
            ],
            "resources": self._resources(role),
            "volumeMounts": self._mounts(),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
        if role != "evaluator" and not self.job.is_single:  # which serve nobody
            # TFJob's operator finds the port by this name.
            port = {"name": "tfjob-port", "containerPort": self.job.port, "protocol": "TCP"}
            container["ports"] = [port]
            container["readinessProbe"] = {"tcpSocket": {"port": self.job.port}, "periodSeconds": 10}
        return _with_more(container, self.section.container)

    def _resources(self, role: str) -> Object:
        if wrong := sorted({*self.section.resources} - {*self.job.counts, "all"}):
            expected = f"a role of the job ({', '.join(sorted(self.job.counts))}) or all"
            raise ConfigError("engine.kubernetes.resources", expected=expected, received=shown(wrong[0]))
        sections = (self.section.resources.get(name, ResourcesSection()) for name in ("all", role))
        wanted = {key: value for section in sections for key, value in _given(section).items()}
        gpus = {self.section.gpu_resource: wanted["gpus"]} if wanted.get("gpus") else {}
        memory = {"memory": wanted["memory"]} if "memory" in wanted else {}
        cpu = {"cpu": wanted["cpu"]} if "cpu" in wanted else {}
        limits, requests = {**memory, **gpus}, {**cpu, **memory}
        both: dict[str, Object] = {"requests": requests, "limits": limits}
        return {name: {key: str(value) for key, value in of.items()} for name, of in both.items() if of}

    def _volumes(self) -> list[Object]:
        volumes: list[Object] = [
            {"name": "shared", "persistentVolumeClaim": {"claimName": self.section.volume.claim}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]
        if self.job.config is not None:
            volumes.append({"name": "config", "configMap": {"name": self.name}})
        return volumes

    def _mounts(self) -> list[Object]:
        paths = {"shared": _SHARED, "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108  # in the pod
        mounts: list[Object] = [{"name": name, "mountPath": path} for name, path in paths.items()]
        if self.job.config is not None:
            mounts.append({"name": "config", "mountPath": _CONFIG, "readOnly": True})
        return mounts


def _with_more(value: Object, more: Object) -> Object:
    """Return an object with more fields; lists in both, such as volumes, are joined."""
    lists = {
        key: [*value[key], *items]
        for key, items in more.items()
        if isinstance(items, list) and isinstance(value.get(key), list)
    }
    return merged(value, {**more, **lists})


def _given(section: msgspec.Struct) -> Object:
    return {key: value for key, value in msgspec.structs.asdict(section).items() if value is not None}
