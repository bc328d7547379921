"""Run the pods of a rendered manifest as containers, as the controllers of Kubernetes would.

Names, environment, volumes, users, probes and rules of restarting are read from the manifest. What controllers
add is added here: host names and indexes of indexed Jobs, labels of JobSet, TF_CONFIG of TFJob.
"""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from docker_site import Docker

__all__ = ["Pod", "Pods", "running_pods"]

_SECONDS_BETWEEN_LOOKS = 0.5
_ROLE = "app.kubernetes.io/component"
Object = dict[str, Any]


@dataclass
class Pod:
    """A task of the job, of which there is one container after the other.

    Attributes:
        role: The role of the task.
        host: Its host name.
        names: The names under which others find it.
        labels: The labels of the pod.
        spec: The spec of the pod.
        added: The variables that the controller adds.
        job: The spec of its Job; None for a TFJob.
        started: How many containers were started.
        statuses: The exit statuses of those that have ended.
        failures: How many have failed since its Job was made.
        was_ready: Whether the readiness probe of a container has succeeded.
        is_evicted: Whether its container was told to end by an eviction.
        probe: What connects to the newest container until it is ready.
    """

    role: str
    host: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    spec: Object
    added: Mapping[str, str]
    job: Object | None = None
    started: int = 0
    statuses: list[int] = field(default_factory=list)
    failures: int = 0
    was_ready: bool = False
    is_evicted: bool = False
    probe: subprocess.Popen[bytes] | None = None

    @property
    def container(self) -> str:
        """Return the name of the newest container."""
        return f"{self.host}.{self.started}"

    @property
    def runs(self) -> bool:
        """Return whether the newest container runs."""
        return len(self.statuses) < self.started

    @property
    def has_succeeded(self) -> bool:
        """Return whether the newest container has ended with 0."""
        return not self.runs and self.statuses[-1:] == [0]


class Pods:
    """The pods of a manifest.

    Attributes:
        folder: The volume that the pods share.
        pods: The pods.
        restarts: How often the JobSet has started all pods again.
    """

    def __init__(self, docker: Docker, manifest: str, folder: Path, more: Mapping[str, str]) -> None:
        self.docker, self.folder = docker, folder
        self._objects = {
            (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(manifest) if one
        }
        self._for_the_trainer = more
        self.restarts = 0
        self.jobset: Object | None = None
        self.tfjob: Object | None = None
        self.pods = list(self._found())
        self.network = f"net-{self.pods[0].host}"

    def run(self, seconds: float, each: Callable[["Pods"], None] = lambda pods: None) -> str:
        """Run the pods until the job has succeeded or failed; return which.

        Args:
            seconds: For how long at most.
            each: What is called at each look.
        """
        for pod in self.pods:
            self._start(pod)
        deadline = time.monotonic() + seconds
        while True:
            assert time.monotonic() < deadline, self.logs()
            each(self)
            for pod in self.pods:
                if verdict := self._look_at(pod):
                    return verdict
            if self._is_done():
                return "succeeded"
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def logs(self, role: str = "") -> str:
        """Return what the containers have printed, of a role or of all."""
        texts = []
        for pod in self.pods:
            for number in range(1, pod.started + 1):
                done = self.docker.attempt("docker", "logs", f"{pod.host}.{number}")
                if pod.role.startswith(role) and not done.returncode:
                    texts.append(f"-- {pod.host}.{number}\n{done.stdout}{done.stderr}")
        return "\n".join(texts)

    def evict(self, role: str) -> None:
        """End the first pod of a role within its grace, as a drain of its node does."""
        pod = self._first(role)
        pod.is_evicted = True
        self.docker.run("docker", "stop", pod.container)

    def lose_node(self, role: str) -> None:
        """Kill the first pod of a role with its node, which Kubernetes reports as a disruption."""
        self._first(role).is_evicted = True
        self.kill(role)

    def kill(self, role: str) -> None:
        """Kill the process of the first pod of a role."""
        self.docker.kill(self._first(role).container)

    def end(self) -> None:
        """End the pods that still run, as their controllers do after the job."""
        for pod in self.pods:
            self._stop(pod)

    def _first(self, role: str) -> Pod:
        return next(pod for pod in self.pods if pod.role == role)

    # -- what there is --

    def _found(self) -> Iterator[Pod]:
        for (kind, name), one in self._objects.items():
            if kind == "Job":
                yield from _of_job(one["spec"], name, one["spec"]["template"]["spec"]["subdomain"], {})
            elif kind == "JobSet":
                self.jobset = one["spec"]
                yield from self._of_jobset(name)
            elif kind == "TFJob":
                self.tfjob = one["spec"]
                yield from _of_tfjob(one)
            elif kind == "TrainJob":
                reference = one["spec"]["runtimeRef"]
                runtime = self._objects[reference["kind"], reference["name"]]
                self.jobset = runtime["spec"]["template"]["spec"]
                for replicated in self.jobset["replicatedJobs"]:
                    if _is_trainer(replicated):
                        nodes = one["spec"]["trainer"]["numNodes"]
                        replicated["template"]["spec"].update(completions=nodes, parallelism=nodes)
                yield from self._of_jobset(name)

    def _of_jobset(self, name: str) -> Iterator[Pod]:
        for replicated in self.jobset["replicatedJobs"]:
            assert replicated["replicas"] == 1
            labels = {"jobset-name": name, "replicatedjob-name": replicated["name"]}
            labels = {f"jobset.sigs.k8s.io/{key}": value for key, value in labels.items()}
            added = self._for_the_trainer if _is_trainer(replicated) else {}
            spec = replicated["template"]["spec"]
            for pod in _of_job(spec, f"{name}-{replicated['name']}-0", name, labels):
                pod.added = {**pod.added, **added}
                yield pod

    # -- a container --

    def _start(self, pod: Pod) -> None:
        pod.started += 1
        [container] = pod.spec["containers"]
        context, own = pod.spec["securityContext"], container["securityContext"]
        assert context["runAsNonRoot"]
        user = context["runAsUser"]
        options = [f"--user={user}:{context['runAsGroup']}", f"--hostname={pod.host}"]
        options += [f"--network={self.network}", *(f"--network-alias={name}" for name in pod.names)]
        options += [f"--stop-timeout={pod.spec['terminationGracePeriodSeconds']}"]
        options += [f"--cap-drop={name}" for name in own["capabilities"]["drop"]]
        options += ["--init"] if pod.spec["shareProcessNamespace"] else []
        options += ["--read-only"] if own["readOnlyRootFilesystem"] else []
        options += [] if own["allowPrivilegeEscalation"] else ["--security-opt=no-new-privileges"]
        variables = self._environment(pod, container)
        for key, value in variables.items():
            options += ["--env", f"{key}={value}"]
        options += self._mounts(pod, container, user)
        options += [f"--volume={volume}" for volume in self.docker.volumes]
        words = [_expanded(word, variables) for word in container["command"]]
        name = f"--name={pod.container}"
        self.docker.run("docker", "run", "--detach", name, *options, self.docker.image, *words)
        self._start_probe(pod)

    def _environment(self, pod: Pod, container: Object) -> dict[str, str]:
        values: dict[str, str] = {}
        for one in container["env"]:
            source = one.get("valueFrom", {})
            if "fieldRef" in source:
                [label] = re.findall(r"metadata\.labels\['(.*)'\]", source["fieldRef"]["fieldPath"])
                values[one["name"]] = pod.labels[label]
            elif "secretKeyRef" in source:
                secret = self._objects["Secret", source["secretKeyRef"]["name"]]
                values[one["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
            else:
                values[one["name"]] = _expanded(one["value"], values)
        return {**values, **pod.added}

    def _mounts(self, pod: Pod, container: Object, user: int) -> list[str]:
        sources = {volume["name"]: volume for volume in pod.spec["volumes"]}
        options = []
        for mount in container["volumeMounts"]:
            source, path = sources[mount["name"]], mount["mountPath"]
            if "emptyDir" in source:
                options.append(f"--tmpfs={path}:mode=1777")
            elif "persistentVolumeClaim" in source:
                options.append(f"--volume={self.folder}:{path}")
            else:
                folder = self.folder.parent / source["configMap"]["name"]
                folder.mkdir(exist_ok=True)
                for name, text in self._objects["ConfigMap", source["configMap"]["name"]]["data"].items():
                    (folder / name).write_text(text)
                options.append(f"--volume={folder}:{path}:ro")
        return options

    # -- rules --

    def _look_at(self, pod: Pod) -> str | None:
        """Follow the rules for a pod whose container has ended; return the state of a job that has ended."""
        if not pod.runs:
            return None
        state = self.docker.inspect(pod.container)["State"]
        if state["Status"] != "exited":
            return None
        status = state["ExitCode"]
        _note_end(pod, status)
        evicted, pod.is_evicted = pod.is_evicted, False
        if status == 0:
            return None
        if pod.job is None:
            action = "FailJob" if status < 128 else "Count"  # as restartPolicy: ExitCode
            most = self.tfjob["runPolicy"]["backoffLimit"]
        else:
            action = _action(pod.job["podFailurePolicy"]["rules"], status, evicted=evicted)
            most = pod.job.get("backoffLimitPerIndex", pod.job.get("backoffLimit"))
        if action == "FailJob":
            return self._job_failed("PodFailurePolicy")
        pod.failures += action == "Count"
        if pod.failures > most:
            return self._job_failed("BackoffLimitExceeded")
        self._start(pod)
        return None

    def _job_failed(self, reason: str) -> str | None:
        """Start all pods of a JobSet again, where its rules say so; otherwise the job has failed."""
        if self.jobset is None:
            return "failed"
        policy = self.jobset["failurePolicy"]
        actions = [rule["action"] for rule in policy["rules"] if reason in rule["onJobFailureReasons"]]
        if actions or self.restarts == policy["maxRestarts"]:
            assert actions in ([], ["FailJobSet"])
            return "failed"
        self.restarts += 1
        for pod in self.pods:
            self._stop(pod)
        for pod in self.pods:
            pod.failures = 0
            self._start(pod)
        return None

    def _stop(self, pod: Pod) -> None:
        if pod.runs:
            self.docker.run("docker", "stop", pod.container)
            _note_end(pod, self.docker.inspect(pod.container)["State"]["ExitCode"])

    def _start_probe(self, pod: Pod) -> None:
        """Connect to the pod's port until it is ready, as its readiness probe does; nobody has to look meanwhile."""
        probe = pod.spec["containers"][0].get("readinessProbe")
        if probe and not pod.was_ready:
            connect = f"exec 3<>/dev/tcp/{pod.host}/{probe['tcpSocket']['port']}"
            loop = f"until ({connect}) 2> /dev/null; do sleep 0.2; done"
            words = ["docker", "exec", pod.container, "bash", "-c", loop]
            silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            pod.probe = subprocess.Popen(words, env=self.docker.environ, **silent)

    def _is_done(self) -> bool:
        """Return whether the job has succeeded; end the pods that the controllers would end then."""
        done = {role: all(pod.has_succeeded for pod in self.pods if pod.role == role) for role in self.roles}
        if self.jobset is not None:
            return all(done[role] for role in self.jobset["successPolicy"]["targetReplicatedJobs"])
        if self.tfjob is not None:
            return done["chief" if "chief" in done else "worker"]
        return all(done.values())

    @property
    def roles(self) -> set[str]:
        """Return the roles of the pods."""
        return {pod.role for pod in self.pods}


def _note_end(pod: Pod, status: int) -> None:
    """Note the exit status of the newest container, and whether it was ready before."""
    pod.statuses.append(status)
    _end_probe(pod)


def _end_probe(pod: Pod) -> None:
    """Wait for the probe of a container that has ended, which ends with it."""
    if pod.probe is not None:
        pod.was_ready |= pod.probe.wait() == 0
        pod.probe = None


def _is_trainer(replicated: Object) -> bool:
    labels = replicated["template"].get("metadata", {}).get("labels", {})
    return labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer"


def _of_job(spec: Object, name: str, subdomain: str, labels: Mapping[str, str]) -> Iterator[Pod]:
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    pod = spec["template"]
    assert pod["spec"]["restartPolicy"] == "Never"
    own = {**pod["metadata"]["labels"], **labels}
    for index in range(spec["completions"]):
        host = f"{name}-{index}"
        added = {"JOB_COMPLETION_INDEX": str(index)}
        yield Pod(own[_ROLE], host, (f"{host}.{subdomain}",), own, pod["spec"], added, spec)


def _of_tfjob(tfjob: Object) -> Iterator[Pod]:
    name, space = tfjob["metadata"]["name"], tfjob["metadata"]["namespace"]
    replicas = {type_.lower(): one for type_, one in tfjob["spec"]["tfReplicaSpecs"].items()}
    cluster = {
        role: [f"{name}-{role}-{i}.{space}.svc:{_port_of_tfjob(one)}" for i in range(one["replicas"])]
        for role, one in replicas.items()
        if role != "evaluator"  # which the operator leaves out
    }
    for role, one in replicas.items():
        assert one["restartPolicy"] == "ExitCode"
        for index in range(one["replicas"]):
            task = {"type": role, "index": index}
            config = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
            host, pod = f"{name}-{role}-{index}", one["template"]
            labels = pod["metadata"]["labels"]
            yield Pod(role, host, (f"{host}.{space}.svc",), labels, pod["spec"], {"TF_CONFIG": config})


def _port_of_tfjob(replica: Object) -> int:
    [container] = [one for one in replica["template"]["spec"]["containers"] if one["name"] == "tensorflow"]
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    return ports.get("tfjob-port", 2222)


def _action(rules: list[Object], status: int, *, evicted: bool) -> str:
    """Return the action of the first rule that fits, as a Job's controller finds it."""
    for rule in rules:
        if "onPodConditions" in rule:
            fits = evicted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]
        else:
            codes = rule["onExitCodes"]
            fits = (status in codes["values"]) == (codes["operator"] == "In")
        if fits:
            return rule["action"]
    return "Count"


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return re.sub(
        r"\$\$|\$\((\w+)\)", lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text
    )


@contextlib.contextmanager
def running_pods(
    docker: Docker, manifest: str, folder: Path, more: Mapping[str, str] | None = None
) -> Iterator[Pods]:
    """Make a network and a volume for the pods of a manifest, and remove what is left of them.

    Args:
        docker: The engine.
        manifest: The manifest.
        folder: The volume.
        more: The variables that the controller of TrainJob adds.
    """
    pods = Pods(docker, manifest, folder, more or {})
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # fsGroup does that
    docker.run("docker", "network", "create", "--internal", pods.network)
    try:
        yield pods
    finally:
        for pod in pods.pods:
            for number in range(1, pod.started + 1):
                docker.attempt("docker", "rm", "--force", f"{pod.host}.{number}")
            _end_probe(pod)
        docker.run("docker", "network", "rm", pods.network)
