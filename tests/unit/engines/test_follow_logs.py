"""A log that cannot be read leaves the lines of the others, with every engine."""

import contextlib
import re
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.engines import follow_logs
from tfdist.engines.client_command import run_client
from tfdist.engines.clouds import sagemaker as sagemaker_module
from tfdist.engines.clouds import vertex as vertex_module
from tfdist.engines.clouds.sagemaker import SageMaker
from tfdist.engines.clouds.vertex import Vertex
from tfdist.engines.compose import engine as compose_module
from tfdist.engines.compose.engine import Compose
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.ray import engine as ray_module
from tfdist.engines.ssh.check_hosts import check_hosts
from tfdist.engines.ssh.plan_file import Plan
from tfdist.errors import ConfigError, StorageError

TASKS = ("chief:0", "worker:0", "worker:1")
GONE = StorageError("disk", "cannot be read: Input/output error")
DOWN = ConfigError("engine", "connection refused")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for module in (compose_module, ray_module, sagemaker_module, vertex_module):
        monkeypatch.setattr(module, "_SECONDS_BETWEEN_READS", 0.0)
    for module in (sagemaker_module, vertex_module):
        monkeypatch.setattr(module, "_one_line_errors", contextlib.nullcontext)
    monkeypatch.setattr(follow_logs, "_SECONDS_BETWEEN_STATES", 0.0)


def printed_by(lines, error, match):
    """Return the lines that come before an error."""
    printed = []
    with pytest.raises(error, match=match):
        printed.extend(lines)
    return printed


def rounds_of(*rounds):
    """Return logs whose lines in each round are those of a list; an error is raised."""
    remaining = list(rounds)

    def lines_of(task, found):
        if isinstance(found, Exception):
            raise found
        yield from ((task, line) for line in found)

    def logs(_):
        now = remaining.pop(0)
        if isinstance(now, Exception):
            raise now
        yield from ((task, lines_of(task, found)) for task, found in now.items())

    return logs, lambda: len(remaining) == 1


def test_the_first_of_several_errors_is_raised_after_the_lines_of_the_others():
    logs, _ = rounds_of({"worker:0": GONE, "worker:1": ["a"], "worker:2": DOWN})
    lines = follow_logs.read_logs(logs, None, 0.0)
    found = printed_by(lines, StorageError, r"^logs of worker:0 and 1 more: disk: cannot be read: Input")
    assert found == [("worker:1", "a")]


def test_a_followed_log_that_can_be_read_again_has_no_error_in_the_end(capsys):
    rounds = {"worker:0": GONE, "worker:1": ["a"]}, {"worker:0": GONE}, {"worker:0": ["b"], "worker:1": ["c"]}
    lines = list(follow_logs.read_logs(*rounds_of(*rounds), 0.0))
    assert lines == [("worker:1", "a"), ("worker:0", "b"), ("worker:1", "c")]
    assert capsys.readouterr().err == "tfdist: logs of worker:0: disk: cannot be read: Input/output error\n"


def test_a_followed_log_that_stays_unreadable_ends_with_its_error():
    rounds = {"worker:0": GONE, "worker:1": ["a"]}, {"worker:0": GONE, "worker:1": ["b"]}
    lines = follow_logs.read_logs(*rounds_of(*rounds), 0.0)
    assert printed_by(lines, StorageError, "^logs of worker:0: ") == [("worker:1", "a"), ("worker:1", "b")]


def test_an_engine_that_does_not_answer_for_a_while_ends_no_followed_log(monkeypatch, capsys):
    rounds = DOWN, {"worker:0": ["a"]}, DOWN, DOWN, {"worker:0": ["b"]}
    assert list(follow_logs.read_logs(*rounds_of(*rounds), 0.0)) == [("worker:0", "a"), ("worker:0", "b")]
    assert capsys.readouterr().err == 2 * "tfdist: engine: connection refused\n"
    monkeypatch.setattr(follow_logs, "_SECONDS_OF_FAILURES", 0.0)
    lines = follow_logs.read_logs(*rounds_of(*rounds), 0.0)
    assert printed_by(lines, ConfigError, "^engine: connection refused$") == []


def submission(engine):
    return Submission(Handle(engine.name, "p.r", "7"), "x", Path("/runs/x"), TASKS, "tfdist submit")


def ending(engine, monkeypatch, *states):
    """Make the states of the engine's job those of a list, and return the job."""
    remaining = iter(states or (State.SUCCEEDED,))
    monkeypatch.setattr(engine, "state", lambda _: (next(remaining), ""))
    return submission(engine)


class CloudWatch:
    """Answer as CloudWatch does for a job with a stream for each task; one of them has an error after a line."""

    exceptions = SimpleNamespace(ResourceNotFoundException=LookupError)

    def __init__(self, failures):
        self.failures, self.asked = failures, []

    def get_paginator(self, _):
        return SimpleNamespace(paginate=lambda **_: [{"logStreams": [{"logStreamName": t} for t in TASKS]}])

    def get_log_events(self, *, logStreamName, nextToken="0", **_):
        self.asked.append(logStreamName)
        if nextToken == "1" and logStreamName == "chief:0" and self.failures:
            self.failures -= 1
            raise DOWN
        texts = [f"tfdist: this container is {logStreamName}", "a"] if nextToken == "0" else ["b"]
        last = int(nextToken) >= 2
        return {
            "events": [] if last else [{"message": text} for text in texts],
            "nextForwardToken": nextToken if last else str(int(nextToken) + 1),
        }


def test_a_stream_of_cloudwatch_that_cannot_be_read_leaves_the_others(monkeypatch):
    engine = SageMaker()
    monkeypatch.setattr(engine, "_client", lambda *_: CloudWatch(1))
    found = printed_by(
        engine.logs(submission(engine), TASKS, False), ConfigError, r"^logs of chief:0: engine: c"
    )
    assert [line for line in found if line[1] in "ab"] == [
        ("chief:0", "a"),
        *((task, text) for task in TASKS[1:] for text in "ab"),
    ]


def test_a_followed_stream_of_cloudwatch_continues_where_it_failed(monkeypatch):
    engine, client = SageMaker(), CloudWatch(1)
    monkeypatch.setattr(engine, "_client", lambda *_: client)
    job = ending(engine, monkeypatch, State.RUNNING, State.SUCCEEDED)
    found = list(engine.logs(job, ("chief:0",), True))
    assert [text for _, text in found] == ["tfdist: this container is chief:0", "a", "b"]
    assert client.asked.count("worker:0") == 3  # once it is known, that stream is not read again


def entries(client, *, fails):
    for number in range(3):
        if number == 2 and fails.pop():
            raise DOWN
        labels, at = {"task_name": f"workerpool{min(number, 1)}-0"}, datetime(2026, 1, 1, tzinfo=timezone.utc)
        resource = SimpleNamespace(labels=labels)
        yield SimpleNamespace(insert_id=number, timestamp=at, payload=f"line {number}", resource=resource)


def test_pages_of_cloud_logging_come_before_the_error_of_a_later_one_and_once(monkeypatch):
    engine, fails = Vertex(), [False, True, True]
    client = SimpleNamespace(list_entries=lambda **_: entries(client, fails=fails))
    monkeypatch.setattr(engine, "_log_client", lambda _: client)
    lines = [("chief:0", "line 0"), ("worker:0", "line 1"), ("worker:0", "line 2")]
    assert (
        printed_by(engine.logs(submission(engine), TASKS, False), ConfigError, "^engine: conn") == lines[:2]
    )
    job = ending(engine, monkeypatch, State.RUNNING, State.SUCCEEDED)
    assert list(engine.logs(job, TASKS, True)) == lines


class Containers:
    """Answer as `docker compose logs` does: if a container's log cannot be read, there is nothing but an error."""

    def __init__(self, *unreadable):
        self.unreadable, self.texts = list(unreadable), {}

    def __call__(self, handle, *words):
        services = [word for word in words if re.fullmatch("(chief|worker)-[0-9]", word)]
        bad = self.unreadable.pop(0) if len(services) > 1 and self.unreadable else None
        self.bad = bad if len(services) > 1 else self.bad
        if self.bad in services:
            raise ConfigError("compose", "configured logging driver does not support reading")
        return "".join(
            f"{service}-1  | 2026-01-01T00:00:0{second}Z {service} {second}\n"
            for service in services
            for second in range(1, 3)
        )


def test_a_container_whose_log_cannot_be_read_leaves_the_others(monkeypatch):
    engine = Compose()
    monkeypatch.setattr(compose_module, "_compose", Containers("worker-0"))
    found = printed_by(
        engine.logs(submission(engine), TASKS, False),
        ConfigError,
        "^logs of worker:0: compose: configured logging driver does not support reading$",
    )
    assert found == [
        (task, f"{task.replace(':', '-')} {n}") for task in ("chief:0", "worker:1") for n in (1, 2)
    ]


def test_followed_containers_have_each_line_once_after_an_error(monkeypatch):
    engine = Compose()
    monkeypatch.setattr(compose_module, "_compose", Containers("worker-0"))
    job = ending(engine, monkeypatch, State.RUNNING, State.SUCCEEDED)
    found = list(engine.logs(job, TASKS, True))
    assert sorted(found) == [(task, f"{task.replace(':', '-')} {n}") for task in TASKS for n in (1, 2)]


def test_followed_containers_that_were_removed_end(monkeypatch):
    engine = Compose()
    monkeypatch.setattr(compose_module, "_compose", lambda *_: "")
    assert list(engine.logs(ending(engine, monkeypatch, State.UNKNOWN), TASKS, True)) == []


def test_a_filter_of_cloud_logging_that_names_many_tasks_is_short(monkeypatch):
    tasks = ("chief:0", *(f"worker:{i}" for i in range(999)))
    filters = []

    def list_entries(*, filter_, **_):
        filters.append(filter_)
        for pool in ("service", "workerpool1-998", None):
            resource = SimpleNamespace(labels={"task_name": pool} if pool else {})
            yield SimpleNamespace(insert_id=pool, timestamp=0, payload=f"of {pool}", resource=resource)

    engine = Vertex()
    monkeypatch.setattr(engine, "_log_client", lambda _: SimpleNamespace(list_entries=list_entries))
    job = Submission(Handle(engine.name, "p.r", "7"), "x", Path("/runs/x"), tasks, "tfdist submit")
    assert list(engine.logs(job, tasks, False)) == [("worker:998", "of workerpool1-998")]
    assert list(engine.logs(job, tasks[-1:], False)) == [("worker:998", "of workerpool1-998")]
    assert [len(text) < 200 for text in filters] == [True, True]  # Cloud Logging takes 20,000 characters
    assert 'resource.labels.task_name=("workerpool1-998")' in filters[1]


def test_what_a_client_prints_may_be_any_bytes():
    done = run_client(["sh", "-c", r"printf 'a\377b\n'; printf '\377' >&2"], "sh", "")
    assert (done.stdout, done.stderr) == ("a\\xffb\n", "\\xff")


def test_a_host_may_greet_in_any_encoding(tmp_path):
    (tmp_path / "ssh").write_text("#!/bin/sh\nprintf 'Gr\\374sse\\n' >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    words = {
        "python": "python3",
        "folder": "/",
        "runs": "/",
        "command": ["true"],
        "restarts": 0,
        "grace": 30.0,
    }
    plan = Plan(tasks={"worker:0": "a"}, addresses={"a": "a"}, ssh=[str(tmp_path / "ssh")], **words)
    [problem] = check_hosts(plan).problems
    assert str(problem).startswith("a: cannot be reached: Gr\\xfcsse. ")
