"""Run a cluster as a job of Ray: a script that calls `tfdist.ray.launch`, which Ray's job server starts.

The script contains the config, so that a Ray cluster needs no file of the user's machine.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from tfdist.engines.follow_logs import Line, read_logs, until_end
from tfdist.engines.job_description import CONFIG, RUN_DIR, Job, train_command
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.options_into_section import OptionPath, with_options
from tfdist.engines.ray.launch import check_resources, needs_ray
from tfdist.errors import ConfigError, TfdistError, one_line, shown
from tfdist.trainer.sections.engine import RaySection

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_NUMBER = "TFDIST_JOB_NUMBER"  # the variable with the submission's id, which names the folder of the run
_SCRIPT = "TFDIST_JOB_SCRIPT"  # the variable with the script
_MOST_BYTES = 120_000  # that Linux passes on as one variable
_SECONDS_BETWEEN_READS = 1.0
_STATES = {
    "PENDING": State.PENDING,
    "RUNNING": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "STOPPED": State.CANCELLED,
}
_CONFIG_FORM = """\
CONFIG = {config}

try:
    with temporary_folder("tfdist-") as folder:
        config = Path(folder, {file!r})
        config.write_text(CONFIG, encoding="utf-8")
        launch(config, changes={changes!r})
except TfdistError as error:
    sys.exit(f"tfdist: {{error}}")
"""
_COMMAND_FORM = """\
try:
    launch({command!r}, roles={roles!r}, alone={alone!r})
except TfdistError as error:
    sys.exit(f"tfdist: {{error}}")
"""
_RUN_IN, _RUN_AT_ADDRESS = "Path({!r}, number)", "{!r} + f'/{{number}}'"
_NEW_NUMBER = 'time.strftime("{name}-%Y%m%d-%H%M%S-") + secrets.token_hex(2)'
_FORM = """\
# Made by: {made_by}
# Submit it with: {submit}
import os
import secrets
import sys
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # or Ray merges lines of several tasks

import tfdist.ray
from tfdist._utils.write_files import temporary_folder
from tfdist.errors import TfdistError

number = os.environ.get({variable!r}) or {number}
launch = partial(
    tfdist.ray.launch,
    run_dir={run_dir},
    resources={resources!r},
    placement={placement!r},
    max_failures={max_failures!r},
    start_timeout={start_timeout!r},
)

{body}"""


class Ray:
    """Ray's job server."""

    name = "ray"
    takes_addresses = True  # of an object store, for runs

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the script for `ray job submit`."""
        section, number = _with_options(job, options)
        submit = ["ray", "job", "submit"]
        if number:
            submit += ["--submission-id", number]
        if section.address:
            submit += ["--address", section.address]
        submit += ["--working-dir", str(section.runtime_env.get("working_dir", "."))]
        if others := {key: value for key, value in section.runtime_env.items() if key != "working_dir"}:
            submit += ["--runtime-env-json", json.dumps(others)]
        return _FORM.format(
            made_by=job.made_by,
            submit=shlex.join([*submit, "--", "python", "FILE"]),
            variable=_NUMBER,
            number=repr(number) if number else _NEW_NUMBER.format(name=job.name),
            run_dir=_run_dir(job),
            resources=section.resources,
            placement=section.placement,
            max_failures=section.max_failures,
            start_timeout=section.start_timeout,
            body=_body(job),
        )

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Submit the script; the run's folder is on the machines of the cluster."""
        section, number = _with_options(job, options)
        number = number or f"{job.name}-{secrets.token_hex(4)}"
        script = self.render(job, options)
        if len(script.encode()) > _MOST_BYTES:
            remedy = "Write the script by `tfdist render ray -o FILE`, and submit it with its working_dir"
            expected = f"a script of at most {_MOST_BYTES} bytes"
            raise ConfigError("ray", expected=expected, received=str(len(script.encode())), remedy=remedy)
        runtime_env = dict(section.runtime_env)
        own = {_NUMBER: number, _SCRIPT: script, "RAY_DEDUP_LOGS": "0"}
        runtime_env["env_vars"] = {**own, **runtime_env.get("env_vars", {})}
        with _client(section.address) as client:
            client.submit_job(
                entrypoint=f'python -c "${_SCRIPT}"', submission_id=number, runtime_env=runtime_env
            )
            address = client.get_address()
        place = quote(address.removeprefix("http://"), safe=":")
        return job.submission(Handle(self.name, place, number), job.folder / (job.run or number))

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job."""
        with _client(_address(submission)) as client:
            info = client.get_job_info(submission.handle.number)
        message = (info.message or "").split("last available logs")[0].rstrip(" ,")
        return _STATES.get(str(info.status), State.UNKNOWN), one_line(message) or str(info.status)

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of tasks in the job's output; with all tasks, those of the job itself too."""
        position = 0  # of what was read, in the whole output

        def lines(is_last: bool) -> Iterator[Line]:
            nonlocal position
            with _client(_address(submission)) as client:
                number, begin, text = submission.handle.number, 0, ""
                pieces = _tailed(client, number) if follow and not is_last else [client.get_job_logs(number)]
                for piece in pieces:
                    text += piece
                    whole = len(text) if is_last else text.rfind("\n") + 1
                    new = text[max(0, position - begin) : whole]
                    begin, text = begin + whole, text[whole:]
                    position = max(position, begin)
                    yield from _lines_of_tasks(submission, tasks, new)

        def logs(is_last: bool) -> Iterator[tuple[str, Iterator[Line]]]:
            yield "the job", lines(is_last)

        return read_logs(logs, until_end(self.state, submission, follow), _SECONDS_BETWEEN_READS)

    def last_lines(self, submission: Submission, task: str) -> list[str]:
        """Return the lines of a task; Ray's job server has no request for the last ones alone."""
        return [line for _, line in self.logs(submission, [task], follow=False)]

    def cancel(self, submission: Submission) -> None:
        """End a job; its tasks get SIGTERM, and time to save their work."""
        with _client(_address(submission)) as client:
            client.stop_job(submission.handle.number)


def _run_dir(job: Job) -> str:
    """Return the expression for the folder of the run, or for its address."""
    if job.run:
        return repr(job.address_of(job.run) if job.address else str(job.folder / job.run))
    return _RUN_AT_ADDRESS.format(job.address) if job.address else _RUN_IN.format(str(job.folder))


def _tailed(client: "JobSubmissionClient", number: str) -> Iterator[str]:
    """Yield the output of a job from its beginning, piece by piece as it is printed, until its end."""
    import aiohttp

    loop, pieces = asyncio.new_event_loop(), client.tail_job_logs(number)
    try:
        while True:
            yield loop.run_until_complete(anext(pieces))
    except StopAsyncIteration:
        return
    except aiohttp.ClientError as error:
        raise ConnectionError(str(error)) from error
    finally:
        loop.run_until_complete(pieces.aclose())
        loop.close()


def _lines_of_tasks(submission: Submission, tasks: Sequence[str], text: str) -> Iterator[Line]:
    for line in text.splitlines():
        task, colon, rest = line.partition(": ")
        if colon and task in submission.tasks:
            if task in tasks:
                yield task, rest
        elif len(tasks) == len(submission.tasks):
            yield "job", line  # messages of the launch and of Ray


def _body(job: Job) -> str:
    if job.config is None or job.config_text is None:
        return _COMMAND_FORM.format(command=list(job.command), roles=dict(job.counts), alone=list(job.alone))
    changes = [word.removeprefix("--set=") for word in job.command if word.startswith("--set=")]
    if tuple(job.command) != train_command(CONFIG, RUN_DIR, changes):
        raise TfdistError("ray", f"cannot run {shown(job.command)} with a config")
    config = _literal(job.config_text)
    return _CONFIG_FORM.format(config=config, file=job.config.name, changes=changes)


def _literal(text: str) -> str:
    """Return a text as a readable literal of Python's."""
    is_plain = '"""' not in text and "\\" not in text and text.replace("\n", "").isprintable()
    if not is_plain or text.endswith('"'):
        return repr(text)
    return f'"""\\\n{text}"""'


def _with_options(job: Job, options: Mapping[str, str]) -> tuple[RaySection, str]:
    """Return the section of the config with the options, and the id of the submission, if one is wanted."""
    number = options.get("submission_id", "")
    if "submission_id" in options and not re.fullmatch("[A-Za-z0-9_.-]+", number):
        expected = "letters, digits and any of _.-"
        raise ConfigError("--option submission_id", expected=expected, received=shown(number))
    others = {name: text for name, text in options.items() if name != "submission_id"}
    section = with_options(job.section.ray, others, _path_of)
    check_resources(section.resources, job.counts, "engine.ray.resources")
    return section, number


def _path_of(role: str, name: str) -> OptionPath:
    if role:
        return ("resources", role, name)
    return ("runtime_env", name) if name == "working_dir" else name


def _address(submission: Submission) -> str:
    place = unquote(submission.handle.place)
    return place if "://" in place else f"http://{place}"


@contextlib.contextmanager
def _client(address: str | None) -> "Iterator[JobSubmissionClient]":
    """Yield a client of the job server; its errors become one line.

    Raises:
        ConfigError: Ray is not installed, does not answer, or refuses the request.
    """
    needs_ray()
    where = f"ray at {address}" if address else "ray"
    try:
        from ray.job_submission import JobSubmissionClient

        with _without_own_addresses() if address else contextlib.nullcontext():
            client = JobSubmissionClient(address)
        yield client
    except ConnectionError as error:
        remedy = "Name the head's dashboard: --option address=http://HEAD:8265, or RAY_ADDRESS"
        raise ConfigError(where, _line(error), remedy=remedy) from None
    except ImportError as error:  # Ray without its extra
        raise ConfigError("ray", _line(error), remedy="pip install 'tfdist[ray]'") from None
    except (RuntimeError, ValueError) as error:
        if isinstance(error, TfdistError):
            raise
        raise ConfigError(where, _line(error)) from None


@contextlib.contextmanager
def _without_own_addresses() -> Iterator[None]:
    """Hide the variables that Ray's client prefers to the address that it is called with."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    hidden = {name: value for name in names if (value := os.environ.pop(name, None)) is not None}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _line(error: BaseException) -> str:
    """Return the part of an error's text that is meant for people."""
    return one_line(error).split(" Traceback")[0].removesuffix(".")[:300]
