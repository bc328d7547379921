"""Run a cluster as a CustomJob of Vertex AI: one worker pool for each role.

Vertex AI mounts Cloud Storage at /gcs. The secret that the tasks share is a file in the job's folder there,
because the service shows a job's environment variables to all who may see the job.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tfdist.cluster.config import Task
from tfdist.cluster.roles_and_task_counts import ROLES, TASK_COUNTS
from tfdist.engines.clouds.request_parts import (
    Value,
    check_roles_of_tensorflow,
    load_client,
    new_name,
    new_secret,
    of_role,
    required,
    run_name,
    section_of,
    task_command,
)
from tfdist.engines.config_in_variables import config_variables
from tfdist.engines.follow_logs import Line, read_logs, until_end
from tfdist.engines.job_description import Job, without_references
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.options_into_section import merged
from tfdist.errors import ConfigError, TfdistError, first_line, one_line
from tfdist.launcher.progress_for_engines import LOG_PROGRESS
from tfdist.trainer.sections.engine import VertexSection

_LAST_ENTRIES = 200
_ENTRIES_OF_A_PAGE = 1000  # the most; Cloud Logging takes 60 requests a minute
_SECONDS_BETWEEN_READS = 10.0
_MOST_DELAY = timedelta(minutes=2)  # with which an entry may come after newer ones of other tasks
_STATES = {
    "JOB_STATE_QUEUED": State.PENDING,
    "JOB_STATE_PENDING": State.PENDING,
    "JOB_STATE_PAUSED": State.PENDING,
    "JOB_STATE_RUNNING": State.RUNNING,
    "JOB_STATE_UPDATING": State.RUNNING,
    "JOB_STATE_CANCELLING": State.RUNNING,
    "JOB_STATE_SUCCEEDED": State.SUCCEEDED,
    "JOB_STATE_FAILED": State.FAILED,
    "JOB_STATE_EXPIRED": State.FAILED,
    "JOB_STATE_PARTIALLY_SUCCEEDED": State.FAILED,
    "JOB_STATE_CANCELLED": State.CANCELLED,
}


class Vertex:
    """Vertex AI's JobService, and Cloud Logging."""

    name = "vertex"
    takes_addresses = True  # of its object store, for runs
    places_runs = True  # in its object store, so --run_dir may name no folder

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the CustomJob as JSON."""
        section = section_of(job, job.section.vertex, options, "gs://")
        return json.dumps(_request(job, section, new_name(job)), indent=2) + "\n"

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Write the secret to the bucket, and create the CustomJob."""
        section = section_of(job, job.section.vertex, options, "gs://")
        project = required(section.project, "engine.vertex.project")
        region = required(section.region, "engine.vertex.region")
        name = new_name(job)
        request = _request(job, section, name)
        place = _place(job, section, name)
        client, custom_job = self._client(region), _parsed(request)
        with _one_line_errors():
            if section.secret:
                self._write(project, f"{place}/secret", new_secret())
            parent = f"projects/{project}/locations/{region}"
            created = client.create_custom_job(parent=parent, custom_job=custom_job)
        handle = Handle(self.name, f"{project}.{region}", created.name.rpartition("/")[2])
        run_dir = Path("/gcs", place.removeprefix("gs://"))
        tasks = tuple(str(task) for task in _pool_of(_with_chief(job.counts)))
        return Submission(handle, name, run_dir, tasks, job.made_by, url=place)

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job."""
        region, resource = _resource(submission)
        with _one_line_errors():
            job = self._client(region).get_custom_job(name=resource)
        words = f"{job.state.name}: {job.error.message}" if job.error.message else job.state.name
        return _STATES.get(job.state.name, State.UNKNOWN), words

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of the tasks from Cloud Logging, which gets them some seconds later."""
        chosen, wanted = _entries_of(submission, tasks)
        client = self._log_client(submission.handle.place.rpartition(".")[0])
        seen: set[str] = set()
        newest: datetime | None = None

        def logs(is_last: bool) -> Iterator[tuple[str, list[Line]]]:
            nonlocal newest
            if is_last and newest:
                time.sleep(_SECONDS_BETWEEN_READS)  # for the last lines of a job that has just ended
            since = f' timestamp>="{(newest - _MOST_DELAY).isoformat()}"' if newest else ""
            with _one_line_errors():
                for entry in client.list_entries(
                    filter_=wanted + since, order_by="timestamp asc", page_size=_ENTRIES_OF_A_PAGE
                ):
                    task = chosen.get(entry.resource.labels.get("task_name", ""))
                    if task is None or entry.insert_id in seen:  # one of the service itself, or a known one
                        continue
                    yield task, [(task, line) for line in _text(entry.payload).splitlines()]
                    seen.add(entry.insert_id)
                    newest = max(newest or entry.timestamp, entry.timestamp)

        return read_logs(logs, until_end(self.state, submission, follow), _SECONDS_BETWEEN_READS)

    def last_lines(self, submission: Submission, task: str) -> list[str]:
        """Return the last lines of a task."""
        client = self._log_client(submission.handle.place.rpartition(".")[0])
        _, wanted = _entries_of(submission, [task])
        with _one_line_errors():
            last = list(
                client.list_entries(filter_=wanted, order_by="timestamp desc", max_results=_LAST_ENTRIES)
            )
        return [line for entry in reversed(last) for line in _text(entry.payload).splitlines()]

    def cancel(self, submission: Submission) -> None:
        """End a job; its tasks get SIGTERM."""
        region, resource = _resource(submission)
        with _one_line_errors():
            self._client(region).cancel_custom_job(name=resource)

    def _client(self, region: str) -> Any:
        vertex = load_client("google.cloud.aiplatform_v1", self.name)
        with _one_line_errors():
            return vertex.JobServiceClient(
                client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"}
            )

    def _log_client(self, project: str) -> Any:
        with _one_line_errors():
            return load_client("google.cloud.logging", self.name).Client(project=project)

    def _write(self, project: str, address: str, text: str) -> None:
        """Write an object to Cloud Storage."""
        bucket, _, path = address.removeprefix("gs://").partition("/")
        client = load_client("google.cloud.storage", self.name).Client(project=project)
        client.bucket(bucket).blob(path).upload_from_string(text)


def _place(job: Job, section: VertexSection, name: str) -> str:
    """Return the address of the run."""
    output = required(section.output, "engine.vertex.output", starts_with="gs://")
    return f"{output}/{run_name(job, name)}"


def _request(job: Job, section: VertexSection, name: str) -> dict[str, Any]:
    """Return the CustomJob as the REST API takes it."""
    output = _place(job, section, name)
    restart_job = "worker" not in job.alone if section.restart_job is None else section.restart_job
    scheduling: dict[str, Any] = {"restartJobOnWorkerRestart": restart_job}
    if section.timeout is not None:
        scheduling["timeout"] = f"{section.timeout}s"
    if section.spot:
        scheduling["strategy"] = "SPOT"
    spec: dict[str, Any] = {
        "workerPoolSpecs": _pools(job, section, name, output),
        "scheduling": scheduling,
        "baseOutputDirectory": {"outputUriPrefix": output},
    }
    for field, value in {
        "serviceAccount": section.service_account,
        "network": section.network,
        "tensorboard": section.tensorboard,
    }.items():
        if value:
            spec[field] = value
    request: dict[str, Any] = {"displayName": name, "jobSpec": spec}
    if section.labels:
        request["labels"] = dict(section.labels)
    return merged(request, section.request)


def _entries_of(submission: Submission, tasks: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the tasks by what Cloud Logging calls them, and the filter of their entries."""
    pools = _pool_of(Counter(Task.parse(task).type for task in submission.tasks))
    chosen = {pools[Task.parse(task)]: task for task in tasks}
    of_job = f'resource.type="ml_job" resource.labels.job_id="{submission.handle.number}"'
    if len(chosen) == len(pools):  # a filter has 20,000 characters at most: the names of 900 tasks
        return chosen, of_job
    names = " OR ".join(f'"{name}"' for name in chosen)
    return chosen, f"{of_job} resource.labels.task_name=({names})"


def _pools(job: Job, section: VertexSection, name: str, output: str) -> list[dict[str, Any]]:
    """Return the worker pools: chief, workers, ps, evaluator; an empty one for a role without tasks."""
    check_roles_of_tensorflow(job)
    counts = _with_chief(job.counts)
    changes = [] if counts == job.counts else [f"cluster={json.dumps(counts)}"]
    of_config = config_variables(job)
    variables = {
        **job.thread_variables,
        TASK_COUNTS: ",".join(f"{role}={count}" for role, count in counts.items()),
        **({"TFDIST_SECRET_FILE": f"/gcs/{output.removeprefix('gs://')}/secret"} if section.secret else {}),
        LOG_PROGRESS: "1",
        **{name: without_references(value) for name, value in of_config.items()},
        **section.env,
    }
    command = [without_references(word) for word in task_command(job, name, changes)]
    container = {
        "imageUri": required(section.image, "engine.vertex.image"),
        "command": command[:3],
        "args": command[3:],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
    }
    last = max(ROLES.index(role) for role in counts)
    return [
        {
            "machineSpec": _machine(section, role, is_worker="chief" not in job.counts and role == "chief"),
            "replicaCount": counts[role],
            "diskSpec": {"bootDiskSizeGb": section.disk_gb},
            "containerSpec": container,
        }
        if role in counts
        else {}
        for role in ROLES[: last + 1]
    ]


def _machine(section: VertexSection, role: str, *, is_worker: bool) -> dict[str, Any]:
    """Return the machine of a role; a chief that is made of a worker has a worker's unless it is named."""

    def chosen(value: Value | Mapping[str, Value], name: str, default: Value | None = None) -> Value:
        is_named = isinstance(value, Mapping) and role in value
        of = "worker" if is_worker and not is_named else role
        return of_role(value, of, f"engine.vertex.{name}", default)

    machine = {"machineType": chosen(section.machine_type, "machine_type")}
    accelerator = chosen(section.accelerator_type, "accelerator_type", "")
    if not accelerator:
        return machine
    count = chosen(section.accelerator_count, "accelerator_count", 1)
    return {**machine, "acceleratorType": accelerator, "acceleratorCount": count}


def _with_chief(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts with a chief, which Vertex AI's first pool must be: else the first worker."""
    counts = {role: counts[role] for role in ROLES if counts.get(role)}
    if "chief" in counts:
        return counts
    rest = {"worker": counts["worker"] - 1} if counts["worker"] > 1 else {}
    return {"chief": 1, **rest, **{role: count for role, count in counts.items() if role != "worker"}}


def _pool_of(counts: Mapping[str, int]) -> dict[Task, str]:
    """Return the name that Vertex AI has for each task, such as workerpool1-0."""
    return {
        Task(role, index): f"workerpool{pool}-{index}"
        for pool, role in enumerate(ROLES)
        for index in range(counts.get(role, 0))
    }


def _resource(submission: Submission) -> tuple[str, str]:
    """Return the region of a job, and its full name."""
    project, _, region = submission.handle.place.rpartition(".")
    return region, f"projects/{project}/locations/{region}/customJobs/{submission.handle.number}"


def _parsed(request: dict[str, Any]) -> Any:
    """Return the request as the client's own message; a field that it does not have is an error."""
    types = load_client("google.cloud.aiplatform_v1.types", "vertex")
    json_format = load_client("google.protobuf.json_format", "vertex")
    message = types.CustomJob()
    try:
        json_format.ParseDict(request, types.CustomJob.pb(message))
    except json_format.ParseError as error:
        raise ConfigError("engine.vertex.request", one_line(error)) from None
    return message


def _text(payload: Any) -> str:
    """Return the text of a log entry."""
    return str(payload.get("message", payload) if isinstance(payload, Mapping) else payload)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise an error of one line for those of the client."""
    refusals = load_client("google.api_core.exceptions", "vertex")
    credentials = load_client("google.auth.exceptions", "vertex")
    try:
        yield
    except credentials.GoogleAuthError as error:
        remedy = "Type `gcloud auth application-default login`"
        raise ConfigError("vertex", first_line(error).rstrip("."), remedy=remedy) from None
    except refusals.ClientError as error:
        raise ConfigError("vertex", error.message) from None
    except refusals.GoogleAPICallError as error:
        raise TfdistError("vertex", error.message) from None
