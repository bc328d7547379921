"""Run a cluster as a training job of SageMaker: one instance group for each role.

The secret that the tasks share comes as an input channel from S3, because the service shows a job's
environment variables to all who may describe the job.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.roles_and_task_counts import TASK_COUNTS
from tfdist.engines.clouds.request_parts import (
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
from tfdist.engines.follow_logs import Line, lines_until_end, raise_first, until_end
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.options_into_section import merged
from tfdist.engines.restart_in_container import RESTARTS
from tfdist.errors import ConfigError, TfdistError, one_line, shown
from tfdist.launcher.progress_for_engines import LOG_PROGRESS
from tfdist.trainer.sections.engine import SageMakerSection

_CHANNEL = "tfdist"  # the input channel with the secret
_LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_MOST_CHARACTERS, _MOST_WORDS = 256, 100  # of the command; these are SageMaker's limits
_MOST_VALUE, _MOST_VARIABLES = 512, 100
_LAST_EVENTS = 200
_SECONDS_BETWEEN_READS = 5.0
_STATES = {
    "Completed": State.SUCCEEDED,
    "Failed": State.FAILED,
    "Stopped": State.CANCELLED,
    "Stopping": State.RUNNING,
}
_WAITING = {
    "Starting",
    "Pending",
    "LaunchingMLInstances",
    "PreparingTrainingStack",
    "Downloading",
    "DownloadingTrainingImage",
}


class SageMaker:
    """SageMaker's CreateTrainingJob, and CloudWatch."""

    name = "sagemaker"
    takes_addresses = True  # of its object store, for runs
    places_runs = True  # in its object store, so --run_dir may name no folder

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the request as JSON."""
        section = section_of(job, job.section.sagemaker, options, "s3://")
        return json.dumps(_request(job, section, new_name(job)), indent=2) + "\n"

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Write the secret to the bucket, and create the training job."""
        section = section_of(job, job.section.sagemaker, options, "s3://")
        name = new_name(job)
        request = _request(job, section, name)
        output = required(section.output, "engine.sagemaker.output", starts_with="s3://")
        with _one_line_errors():
            client = self._client("sagemaker", section.region)
            if section.secret:
                bucket, _, folder = output.removeprefix("s3://").partition("/")
                key = "/".join(filter(None, (folder, name, "secret", "secret")))
                self._client("s3", section.region).put_object(Bucket=bucket, Key=key, Body=new_secret())
            client.create_training_job(**request)
        handle = Handle(self.name, client.meta.region_name, name)
        tasks = tuple(map(str, job.tasks))
        return Submission(
            handle, name, Path("/opt/ml"), tasks, job.made_by, url=f"{output}/{run_name(job, name)}"
        )

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job."""
        with _one_line_errors():
            client = self._client("sagemaker", submission.handle.place)
            job = client.describe_training_job(TrainingJobName=submission.handle.number)
        status, detail = job["TrainingJobStatus"], job.get("SecondaryStatus", "")
        state = _STATES.get(status, State.PENDING if detail in _WAITING else State.RUNNING)
        reason = job.get("FailureReason") or (detail if detail != status else "")
        return state, f"{status}: {reason}" if reason else status

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of the tasks from CloudWatch; each container's first line names its task."""
        client = self._client("logs", submission.handle.place)
        tokens: dict[str, str] = {}
        task_of: dict[str, str] = {}  # by the name of the stream
        errors: dict[str, TfdistError] = {}

        def logs(_: bool) -> Iterator[tuple[str, Iterator[Line]]]:
            for stream in _streams(client, submission.handle.number):
                if task_of.get(stream) in (None, *tasks):
                    yield stream, lines(stream)

        def lines(stream: str) -> Iterator[Line]:
            for line in _new_lines(client, stream, tokens):
                if match := re.fullmatch(r"tfdist: this container is ([a-z]+:[0-9]+)", line):
                    task_of[stream] = match[1]
                if (task := task_of.get(stream)) in tasks:
                    yield str(task), line

        is_over = until_end(self.state, submission, follow)
        yield from lines_until_end(logs, is_over, _SECONDS_BETWEEN_READS, errors)
        raise_first({task_of.get(stream, stream): error for stream, error in errors.items()})

    def last_lines(self, submission: Submission, task: str) -> list[str]:
        """Return the last lines of all containers: only the first line of each names its task."""
        del task
        client = self._client("logs", submission.handle.place)
        lines: list[str] = []
        for stream in _streams(client, submission.handle.number):
            with _one_line_errors():
                answer = client.get_log_events(
                    logGroupName=_LOG_GROUP, logStreamName=stream, limit=_LAST_EVENTS
                )
            lines += [line for event in answer["events"] for line in event["message"].splitlines()]
        return lines

    def cancel(self, submission: Submission) -> None:
        """End a job; its tasks get SIGTERM, and 120 seconds to save their work."""
        with _one_line_errors():
            client = self._client("sagemaker", submission.handle.place)
            client.stop_training_job(TrainingJobName=submission.handle.number)

    def _client(self, service: str, region: str) -> Any:
        with _one_line_errors():
            return load_client("boto3", self.name).client(service, region_name=region or None)


def _request(job: Job, section: SageMakerSection, name: str) -> dict[str, Any]:
    """Return the arguments of CreateTrainingJob."""
    check_roles_of_tensorflow(job)
    if job.counts.get("evaluator"):
        problem = (
            "an evaluator reads the chief's checkpoints on a disk that both see; SageMaker's tasks have none"
        )
        raise ConfigError("sagemaker", problem, remedy="Leave it out: the chief evaluates too")
    output = required(section.output, "engine.sagemaker.output", starts_with="s3://")
    command = task_command(job, name)
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "RoleArn": required(section.role, "engine.sagemaker.role", starts_with="arn:"),
        "AlgorithmSpecification": {
            "TrainingImage": required(section.image, "engine.sagemaker.image"),
            "TrainingInputMode": "File",
            "ContainerEntrypoint": command[:3],
            "ContainerArguments": command[3:],
        },
        "ResourceConfig": _resources(job, section),
        "OutputDataConfig": {"S3OutputPath": f"{output}/{job.run}" if job.run else output},
        "CheckpointConfig": {
            "S3Uri": f"{output}/{run_name(job, name)}/checkpoints",
            "LocalPath": "/opt/ml/checkpoints",
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": section.timeout},
        "Environment": _variables(job, section),
        "EnableInterContainerTrafficEncryption": section.encrypt_traffic,
        "EnableNetworkIsolation": section.network_isolation,
    }
    if section.retries:
        request["RetryStrategy"] = {"MaximumRetryAttempts": section.retries}
    if section.spot:
        request["EnableManagedSpotTraining"] = True
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = section.wait or 2 * section.timeout
    if channels := _channels(job, section, f"{output}/{name}"):
        request["InputDataConfig"] = channels
    if section.subnets or section.security_groups:
        request["VpcConfig"] = {
            "Subnets": list(section.subnets),
            "SecurityGroupIds": list(section.security_groups),
        }
    if section.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in section.tags.items()]
    request = merged(request, section.request)
    _check_limits(request)
    return request


def _resources(job: Job, section: SageMakerSection) -> dict[str, Any]:
    """Return the instances: a group for each role, whose name is the role; or instances of workers alone."""
    where = "engine.sagemaker.instance_type"
    types = {role: of_role(section.instance_type, role, where) for role in job.counts}
    volume = {"VolumeSizeInGB": section.volume_gb}
    if len(types) == 1:
        [(role, kind)] = types.items()
        return {"InstanceType": kind, "InstanceCount": job.counts[role], **volume}
    groups = [
        {"InstanceGroupName": role, "InstanceType": kind, "InstanceCount": job.counts[role]}
        for role, kind in types.items()
    ]
    return {"InstanceGroups": groups, **volume}


def _variables(job: Job, section: SageMakerSection) -> dict[str, str]:
    secret = {"TFDIST_SECRET_FILE": f"/opt/ml/input/data/{_CHANNEL}/secret"} if section.secret else {}
    return {
        **job.thread_variables,
        TASK_COUNTS: job.roles,
        RESTARTS: str(section.restarts),
        LOG_PROGRESS: "1",
        **secret,
        **config_variables(job),
        **section.env,
    }


def _channels(job: Job, section: SageMakerSection, place: str) -> list[dict[str, Any]]:
    channels = dict(section.channels)
    if section.secret:
        channels[_CHANNEL] = f"{place}/secret/"
    groups = {"InstanceGroupNames": list(job.counts)} if len(job.counts) > 1 else {}
    return [
        {
            "ChannelName": name,
            "InputMode": "File",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": address,
                    "S3DataDistributionType": "FullyReplicated",
                    **groups,
                }
            },
        }
        for name, address in channels.items()
    ]


def _check_limits(request: Mapping[str, Any]) -> None:
    """Check the limits of the service that its client does not check."""
    algorithm, variables = request["AlgorithmSpecification"], request["Environment"]
    words = algorithm.get("ContainerArguments", []) if isinstance(algorithm, dict) else algorithm
    parts = {
        "AlgorithmSpecification.ContainerArguments": (words, list, "a list of texts"),
        "Environment": (variables, dict, "a mapping of names to texts"),
    }
    for name, (part, kind, expected) in parts.items():
        values = part.values() if isinstance(part, dict) else part
        if not isinstance(part, kind) or not all(isinstance(value, str) for value in values):
            raise ConfigError(f"engine.sagemaker.request.{name}", expected=expected, received=shown(part))
    for word in words:
        if len(word) > _MOST_CHARACTERS:
            expected = f"at most {_MOST_CHARACTERS} characters in a word of the command"
            raise ConfigError("sagemaker", expected=expected, received=shown(word))
    if len(words) > _MOST_WORDS:
        expected = f"at most {_MOST_WORDS} words in the command"
        raise ConfigError("sagemaker", expected=expected, received=str(len(words)))
    for name, value in variables.items():
        if len(value) > _MOST_VALUE:
            expected = f"at most {_MOST_VALUE} characters"
            raise ConfigError(f"engine.sagemaker.env.{name}", expected=expected, received=str(len(value)))
    if len(variables) > _MOST_VARIABLES:
        expected = f"at most {_MOST_VARIABLES} variables, those of tfdist included"
        raise ConfigError("engine.sagemaker.env", expected=expected, received=str(len(variables)))


def _streams(client: Any, job: str) -> list[str]:
    """Return the names of the log streams of a job: one for each container."""
    with _one_line_errors():
        pages = client.get_paginator("describe_log_streams").paginate(
            logGroupName=_LOG_GROUP, logStreamNamePrefix=f"{job}/"
        )
        try:
            return [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
        except client.exceptions.ResourceNotFoundException:  # the first job of an account has not printed yet
            return []


def _new_lines(client: Any, stream: str, tokens: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a stream after those that were read before."""
    while True:
        token = {"nextToken": tokens[stream]} if stream in tokens else {}
        with _one_line_errors():
            answer = client.get_log_events(
                logGroupName=_LOG_GROUP, logStreamName=stream, startFromHead=True, **token
            )
        yield from (line for event in answer["events"] for line in event["message"].splitlines())
        if answer["nextForwardToken"] == tokens.get(stream):  # the end of what is there
            return
        tokens[stream] = answer["nextForwardToken"]


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise an error of one line for those of the client."""
    errors = load_client("botocore.exceptions", "sagemaker")
    try:
        yield
    except errors.NoRegionError as error:
        remedy = "Set engine.sagemaker.region, or type `aws configure`"
        raise ConfigError("sagemaker", one_line(error).removesuffix("."), remedy=remedy) from None
    except errors.NoCredentialsError as error:
        raise ConfigError("sagemaker", one_line(error), remedy="Type `aws configure`") from None
    except (errors.ClientError, errors.BotoCoreError) as error:
        raise ConfigError("sagemaker", one_line(error)) from None
