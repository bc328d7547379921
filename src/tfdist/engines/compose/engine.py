"""Run a cluster as the containers of a Compose project on one machine: a service for each task.

The tasks have a network of their own, on which a task's service is its host name. In its container, a task
that is lost is started again.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfdist._utils.write_files import storage_errors
from tfdist.cluster.config import Task
from tfdist.engines.client_command import SECONDS, run_client
from tfdist.engines.compose.compose_file import (
    compose_file,
    folder_of_runs,
    folders_to_make,
    job_with_options,
    project_stem,
    service_name,
)
from tfdist.engines.follow_logs import Line, read_logs, until_end
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.log_files_and_exit_status import progress_path
from tfdist.errors import ConfigError, TfdistError

_SECONDS_TO_PULL = 3600.0
_OLDEST = (2, 24)  # the first Compose with configs in the file itself, and their mode
_SECONDS_BETWEEN_READS = 2.0
_LINE = re.compile(r"(?P<service>\S+)-1 +\| (?P<at>\S+Z) ?(?P<text>(?s:.*))")  # of `docker compose logs`


class Compose:
    """Docker Compose, as `docker compose` or `docker-compose`."""

    name = "compose"
    takes_addresses = True  # of an object store, for runs

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the file for Compose."""
        return compose_file(job_with_options(job, options))

    def has_runs_in_volume(self, job: Job, options: Mapping[str, str]) -> bool:
        """Return whether the folder of a run is in a volume, where this machine does not see it."""
        return job_with_options(job, options).section.compose.runs is not None

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Start the containers."""
        job = job_with_options(job, options)
        project = f"{project_stem(job)}-{secrets.token_hex(3)}"
        handle = Handle(self.name, _context(), project)
        text = compose_file(job, "0:0" if _is_rootless(handle) else "")
        run_dir = folder_of_runs(job) / (job.run or project)
        folders = folders_to_make(job)
        if job.folder in folders:
            folders.append(progress_path(run_dir).parent)
        for folder in folders:
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        try:
            _compose(handle, "--file", "-", "up", "--detach", "--quiet-pull", text=text)
        except TfdistError:
            with contextlib.suppress(TfdistError):  # the first error is the one to show
                _compose(handle, "down")
            raise
        return job.submission(handle, run_dir)

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job, from those of its containers."""
        numbers = _compose(submission.handle, "ps", "--all", "--quiet").split()
        if not numbers:
            return State.UNKNOWN, "its containers were removed"
        return _state_of(json.loads(_run(["docker", "inspect", *numbers], _environ(submission.handle))))

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield what the containers have printed, in all their starts."""
        names = {service_name(Task.parse(task)): task for task in tasks}
        newest, since = dict.fromkeys(tasks, ""), dict.fromkeys(tasks, "")

        def read(services: Sequence[str]) -> Iterator[Line]:
            chosen, before = [names[service] for service in services], max(newest.values())
            begin = min(since[task] for task in chosen)
            for at, service, line in _lines(submission.handle, services, begin):
                task = names[service]
                if at > newest[task]:
                    newest[task] = at
                    yield task, line
            # A line may come later than one of another task that is newer.
            since.update(dict.fromkeys(chosen, before))

        def logs(_: bool) -> Iterator[tuple[str, Iterable[Line]]]:
            try:
                lines = list(read(list(names)))  # in the order of their times
            except TfdistError:  # one of them cannot be read
                yield from ((task, read([service])) for service, task in names.items())
            else:
                yield tasks[0], lines
                yield from ((task, ()) for task in tasks[1:])

        return read_logs(logs, until_end(self.state, submission, follow), _SECONDS_BETWEEN_READS)

    def cancel(self, submission: Submission) -> None:
        """Stop the containers; the tasks get SIGTERM, and stop_grace_period to save their work."""
        _compose(submission.handle, "stop")


def _state_of(containers: Sequence[Mapping[str, Any]]) -> tuple[State, str]:
    """Return the state of a job with these containers, as `docker inspect` describes them."""
    statuses = [container["State"]["Status"] for container in containers]
    if set(statuses) == {"created"}:
        return State.PENDING, "created"
    if unfinished := [status for status in statuses if status not in ("exited", "dead")]:
        return State.RUNNING, f"{len(unfinished)} of {len(containers)} containers run"
    codes = {_service_of(container): container["State"]["ExitCode"] for container in containers}
    failed = [container for container in containers if container["State"]["ExitCode"]]
    if not failed:
        return State.SUCCEEDED, "exited with 0"
    if not (ended := [container for container in failed if not _was_stopped(container)]):
        lead = "chief-0" if "chief-0" in codes else "worker-0"
        if codes.get(lead) == 0:  # it has done without them, or they were stopped after its end
            names = ", ".join(map(_service_of, failed))
            return State.SUCCEEDED, f"{lead} exited with 0; stopped or killed: {names}"
        return State.CANCELLED, "stopped"
    first = min(ended, key=lambda container: container["State"]["FinishedAt"])
    return State.FAILED, f"{_service_of(first)} exited with {first['State']['ExitCode']}"


def _service_of(container: Mapping[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def _was_stopped(container: Mapping[str, Any]) -> bool:
    """Return whether a user has stopped it: a task that is lost for good ends with 1."""
    code = container["State"]["ExitCode"]
    return 128 < code <= 128 + max(signal.valid_signals()) and not container["State"].get("OOMKilled")


def _lines(handle: Handle, services: Sequence[str], since: str) -> list[tuple[str, str, str]]:
    """Return the time, the service and the text of each line that containers have printed, in that order.

    Not by `docker compose logs --follow`: it does not end with containers that were started again.
    """
    words = ["logs", "--no-color", "--timestamps", *([f"--since={since}"] if since else []), *services]
    matches = map(_LINE.fullmatch, _compose(handle, *words).split("\n"))
    return sorted((match["at"], match["service"], match["text"]) for match in matches if match)


def _compose(handle: Handle, *words: str, text: str | None = None) -> str:
    secret = {"TFDIST_SECRET": secrets.token_hex(32)}  # for a new file; others have theirs
    return _run([*_command(handle), *words], {**_environ(handle), **secret}, text, _SECONDS_TO_PULL)


def _command(handle: Handle) -> list[str]:
    """Return the command of Compose, for a project."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) is None:
            continue
        done = subprocess.run([*words, "version", "--short"], capture_output=True, text=True, check=False)
        match = re.match(r"v?(\d+)\.(\d+)", done.stdout)
        if done.returncode == 0 and match:
            if (int(match[1]), int(match[2])) < _OLDEST:
                expected = f"version {'.'.join(map(str, _OLDEST))} or later"
                raise ConfigError(" ".join(words), expected=expected, received=done.stdout.strip())
            return [*words, "--project-name", handle.number]
    remedy = "Install Docker with its Compose plug-in"
    raise ConfigError("compose", "neither `docker compose` nor `docker-compose` is found", remedy=remedy)


def _context() -> str:
    """Return the context of Docker's command line, which names the engine."""
    return _run(["docker", "context", "show"], os.environ).strip()


def _is_rootless(handle: Handle) -> bool:
    """Return whether the engine runs as this user, who is root in its containers."""
    with contextlib.suppress(TfdistError):
        words = ["docker", "info", "--format", "{{json .SecurityOptions}}"]
        return "name=rootless" in _run(words, _environ(handle))
    return False


def _environ(handle: Handle) -> dict[str, str]:
    """Return the variables with which Docker's command line asks the engine of a handle."""
    quiet = {"COMPOSE_ANSI": "never", "COMPOSE_PROGRESS": "quiet"}
    environ = {**os.environ, "DOCKER_CONTEXT": handle.place, **quiet}
    if handle.place != "default":
        environ.pop("DOCKER_HOST", None)  # it would come before the context
    return environ


def _run(
    words: list[str], environ: Mapping[str, str], text: str | None = None, timeout: float = SECONDS
) -> str:
    """Run a command of Docker's; return its output.

    Raises:
        ConfigError: There is no such command, or it refuses what it is asked for.
    """
    done = run_client(words, "compose", "Install Docker", text=text, environ=environ, timeout=timeout)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ConfigError("compose", lines[-1].strip() if lines else f"exited with {done.returncode}")
    return done.stdout
