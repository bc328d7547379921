"""Run the objects of a job on Kubernetes by the user's kubectl, whatever their kinds are."""

import abc
import contextlib
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote

import msgspec
import yaml

from tfdist.engines.follow_logs import raise_first, until_end
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.kubernetes.kubectl import delete_objects, get_objects, list_objects, run_kubectl, within
from tfdist.engines.kubernetes.objects import INSTANCE, Application, Object
from tfdist.engines.kubernetes.pod_logs import LogReader, list_pods, pods_of
from tfdist.engines.kubernetes.why_pending import reason_of_events, reason_of_pods
from tfdist.engines.options_into_section import with_options
from tfdist.engines.yaml_dumper import Dumper
from tfdist.errors import ConfigError, TfdistError, shown
from tfdist.trainer.sections.engine import KubernetesSection

_OVERDUE = timedelta(minutes=5)  # more than clocks differ
_LAST_LINES = 200
_LONGEST_NAME = 40  # a pod's host name has 63 characters at most, with its role and numbers
_STATES = {
    "Complete": State.SUCCEEDED,
    "Completed": State.SUCCEEDED,
    "Succeeded": State.SUCCEEDED,
    "Failed": State.FAILED,
}


class KubectlEngine(abc.ABC):
    """A kind of object that runs pods, in the cluster that the user's own kubectl reaches."""

    name: str
    renders_secret = True  # so `render` writes a file that only the user may read
    takes_addresses = True  # of an object store, for runs
    places_runs = True  # on the volume, so --run_dir names no folder
    kinds: tuple[str, ...]  # what `objects` returns, beside the common objects, as kubectl names it

    @abc.abstractmethod
    def objects(self, application: Application) -> list[Object]:
        """Return the objects that start pods, and what they need beside `Application.common`."""

    def watched(self, submission: Submission) -> Mapping[str, bool]:
        """Return the objects, as kind/name, with the state of a job, and whether each decides on success."""
        return {f"{self.kinds[0]}/{submission.handle.number}": True}

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the objects as YAML for kubectl."""
        return _rendered(self._application(job, options, ""), self)

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Pass the objects, under a name that no other job has, to kubectl."""
        application = self._application(job, options, f"-{secrets.token_hex(3)}")
        handle = Handle(self.name, _place(application), application.name)
        submission = job.submission(handle, Path(application.run_dir))
        application = _without_existing_claim(application, submission)
        try:
            run_kubectl("apply", *within(submission), "--filename=-", text=_rendered(application, self))
        except TfdistError:
            # kubectl applies what it can. Errors of the clean-up must not hide why it has failed.
            for objects in self._objects_of(submission):
                with contextlib.suppress(TfdistError):
                    delete_objects(submission, objects)
            raise
        return submission

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state by the conditions of the objects."""
        watched = self.watched(submission)
        objects = get_objects(submission, *watched)
        if len(objects) < len(watched):
            if _has_pods(submission):  # which save their work
                return State.RUNNING, "it was deleted, and its pods end"
            return State.CANCELLED, "it was deleted"
        states = [_state_of(one) for one in objects]
        deciding = [state for state, decides in zip(states, watched.values(), strict=True) if decides]
        if all(state is State.SUCCEEDED for state, _ in deciding):
            return deciding[0]
        order = (State.FAILED, State.RUNNING, State.PENDING, State.SUCCEEDED)
        state, words = min(states, key=lambda state: order.index(state[0]))
        if state is State.FAILED and all(one is not State.FAILED for one, _ in deciding):
            # The chief may still succeed.
            failed = words
            others = [each for each in states if each[0] is not State.FAILED]
            state, words = min(others, key=lambda state: order.index(state[0]))
            words = f"{words}; {failed}"
        if state is State.PENDING:
            words = ": ".join(filter(None, [words, _why_pending(submission)]))
        return state, words

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield what kubectl logs prints for the pods of each task, one after the other."""
        reader = LogReader(submission, tasks, until_end(self.state, submission, follow))
        threads = [threading.Thread(target=reader.read, args=(task,), daemon=True) for task in tasks]
        for thread in threads:
            thread.start()
        for _ in threads:
            while (found := reader.lines.get()) is not None:
                yield found
        raise_first(reader.errors)

    def last_lines(self, submission: Submission, task: str) -> list[str]:
        """Return the last lines of a task's newest pod."""
        pods = pods_of(list_pods(submission, [task]), task)
        if not pods:
            return []
        return run_kubectl("logs", *within(submission), f"--tail={_LAST_LINES}", pods[-1].name).splitlines()

    def cancel(self, submission: Submission) -> None:
        """Delete all objects of a job but the claim; its pods get SIGTERM, and time to save.

        Raises:
            ConfigError: None of them exists.
        """
        deleted = [delete_objects(submission, objects) for objects in self._objects_of(submission)]
        if not "".join(deleted).strip():
            raise ConfigError(str(submission.handle), "nothing of it exists: it was deleted before")

    def _objects_of(self, submission: Submission) -> Iterator[Sequence[str]]:
        """Yield the objects of a job, as kind/name: its own, and those that all engines have."""
        name = submission.handle.number
        yield [*self.watched(submission), *(f"{kind}/{name}" for kind in self.kinds[1:])]
        yield [f"{kind}/{name}" for kind in ("secret", "networkpolicy", "configmap")]

    def _application(self, job: Job, options: Mapping[str, str], ending: str) -> Application:
        if job.folder != Path("runs").absolute():
            remedy = "Leave it out: runs are on the volume, in the folder runs; or name an object store"
            raise ConfigError("--run_dir", f"is not supported by {self.name}", remedy=remedy)
        for role in job.counts:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", role):
                expected = "lower-case letters, digits and -, as Kubernetes wants names"
                raise ConfigError(f"cluster.{role}", expected=expected, received=shown(role))
        return Application(job, _section(job, options), _name(job.name) + ending)


def _section(job: Job, options: Mapping[str, str]) -> KubernetesSection:
    """Return the section of the config with the options; `worker:gpus` is a resource of one role."""
    return with_options(
        job.section.kubernetes, options, lambda role, name: ("resources", role, name) if role else name
    )


def _without_existing_claim(application: Application, submission: Submission) -> Application:
    """Return the application without the claim of the volume if it exists: other jobs use it as it is."""
    volume = application.section.volume
    found = (
        get_objects(submission, f"persistentvolumeclaim/{volume.claim}") if volume.size is not None else []
    )
    if not found:
        return application
    size = found[0]["spec"]["resources"]["requests"]["storage"]
    if size != volume.size:
        problem = f"exists with {size} and stays as it is; volume.size ({volume.size}) has no effect"
        print(f"tfdist: persistentvolumeclaim {volume.claim}: {problem}", file=sys.stderr)
    existing = msgspec.structs.replace(volume, size=None)
    return replace(application, section=msgspec.structs.replace(application.section, volume=existing))


def _rendered(application: Application, engine: KubectlEngine) -> str:
    objects = [*application.common, *engine.objects(application)]
    head = (
        f"# Made by: {application.job.made_by}\n"
        "# Submit it with: kubectl apply -f FILE\n"
        "# It contains the secret of the job: keep it from others.\n"
    )
    return head + "---\n".join(yaml.dump(one, Dumper=Dumper, sort_keys=False) for one in objects)


def _name(text: str) -> str:
    """Return a name that Kubernetes allows for services too, with room for an ending."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if re.match(r"[a-z]", name) else f"run-{name}"
    return name[: _LONGEST_NAME - 7].rstrip("-")


def _state_of(found: Object) -> tuple[State, str]:
    """Return the state of an object, and Kubernetes' own words for it."""
    status = found.get("status") or {}
    name = found["metadata"]["name"]
    conditions = [one for one in status.get("conditions") or () if one.get("status") == "True"]
    for condition in conditions:
        if state := _STATES.get(condition["type"]):
            words = [condition.get(key) for key in ("type", "reason", "message")]
            return state, f"{name}: {': '.join(' '.join(word.split()) for word in words if word)}"
    if ready := sum(_ready(status)):
        return State.RUNNING, f"{name}: {ready} ready"
    words = [condition["type"] for condition in conditions]
    return State.PENDING, f"{name}: {', '.join(words) or 'no pod is ready'}"


def _has_pods(submission: Submission) -> bool:
    """Return whether pods of a job have not ended; False if the user may not ask."""
    with contextlib.suppress(ConfigError):
        pods = list_objects(submission, "pods", f"--selector={INSTANCE}={submission.handle.number}")
        return any(
            pod["status"].get("phase") in ("Pending", "Running") and not _is_overdue(pod) for pod in pods
        )
    return False


def _is_overdue(pod: Object) -> bool:
    """Return whether a deleted pod should have been gone for long: its node is, and its phase stays."""
    if (deadline := pod["metadata"].get("deletionTimestamp")) is None:
        return False
    end = datetime.strptime(deadline, "%Y-%m-%dT%H:%M:%S%z")  # of the pod's grace
    return datetime.now(timezone.utc) - end > _OVERDUE


def _why_pending(submission: Submission) -> str:
    """Return why no pod starts; nothing if Kubernetes does not say it, or the user may not ask."""
    name = submission.handle.number
    with contextlib.suppress(ConfigError):
        if reason := reason_of_pods(list_objects(submission, "pods", f"--selector={INSTANCE}={name}")):
            return reason
        return reason_of_events(
            list_objects(submission, "events", "--field-selector=reason=FailedCreate"), name
        )
    return ""


def _ready(status: Object) -> Iterator[int]:
    """Yield how many pods answer, or Jobs have such pods, by the status of any kind."""
    yield status.get("ready") or 0
    for one in (*(status.get("replicatedJobsStatus") or ()), *(status.get("jobsStatus") or ())):
        yield one.get("ready") or 0
    for one in (status.get("replicaStatuses") or {}).values():
        yield one.get("active") or 0


def _place(application: Application) -> str:
    """Return where a job goes: `namespace@context`, with the context that kubectl has now.

    A job that continues the run of an earlier one goes to its cluster, which has the volume of the run.

    Raises:
        ConfigError: The earlier job is in another namespace.
    """
    namespace, earlier = application.section.namespace, application.job.earlier
    if earlier and not application.job.address:
        if (expected := earlier.place.partition("@")[0]) != namespace:
            where, remedy = "engine.kubernetes.namespace", "Name that, which has the volume of the run"
            expected = f"{shown(expected)}, that of {earlier}"
            raise ConfigError(where, expected=expected, received=shown(namespace), remedy=remedy)
        return earlier.place
    try:
        context = run_kubectl("config", "current-context").strip()
    except ConfigError:  # inside a cluster there is none
        return namespace
    return f"{namespace}@{quote(context, safe=':')}"
