"""A task that is lost is named, with what to do; under asynchronous workers training goes on without it."""

import os
import re
import signal
import socket
import time
from contextlib import contextmanager

import pytest
from clusters import LONGEST, Running, run_cluster

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.only_peers import ONLY_PEERS


@contextmanager
def begun(tmp_path, strategy, case, *, options=None, first=(), more=None, of=None, **shape):
    """Start a cluster, and wait until its work has begun; `of` has what a task's order has besides."""
    cluster = ClusterConfig.local(**shape)
    cases = [*first, case if "." in case else f"lost_cases.{case}"]
    order = {"strategy": strategy, "options": options or {}, "cases": cases, "folder": str(tmp_path)}
    order |= more or {}
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            running.start(task, order | (of or {}).get(str(task), {}))
        running.wait_for("begun")
        yield running, order


def is_open_for_strangers(address):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.9", 0))
        stranger.settimeout(0.2)
        return stranger.connect_ex(split_address(address)) == 0


def lose(running, name, by=signal.SIGKILL):
    """Send a signal to a task; return its process, and how the cluster must report its end."""
    process = running.processes.pop(name)
    os.killpg(process.pid, by)
    if by == signal.SIGKILL:
        process.wait()
    job, _, index = name.partition(":")
    return process, f"lost {name} at {running.cluster.address(Task(job, int(index)))}"


def says(finished, name, what, lost):
    """Check the one line that a person reads."""
    lines = [line for line in finished.logs[name].splitlines() if line.startswith("TaskLost: ")]
    assert finished.exit_codes[name] == 138, finished.logs[name][-3000:]
    assert [line.startswith(f"TaskLost: {what}: {lost}") for line in lines] == [True], lines
    assert lines[0].endswith("start the cluster again, from the last checkpoint")


def test_a_lost_worker_is_named(tmp_path):
    with begun(tmp_path, "multi_worker_mirrored", "fitting", workers=2) as (running, _):
        _, lost = lose(running, "worker:1")
        finished = running.wait(LONGEST, failures_expected=True)

    says(finished, "worker:0", "fit", lost)


@pytest.mark.slow
def test_a_lost_ps_is_named(tmp_path):
    with begun(
        tmp_path,
        "parameter_server",
        "fitting",
        options={"min_shard_bytes": 64, "max_shards": 2},
        first=["option_cases.shards"],
        workers=1,
        ps=2,
    ) as (running, _):
        _, lost = lose(running, "ps:1")
        finished = running.wait(LONGEST, failures_expected=True)

    says(finished, "chief:0", "fit", lost)
    assert finished.exit_codes == {"chief:0": 138, "worker:0": 138, "ps:0": 138}
    # Two shards of a variable of 256 bytes, and one of another of 16.
    assert finished.results["chief:0"]["option_cases.shards"] == {"64": [32, 32], "4": [4]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "case", "what", "lost", "shape"),
    [
        pytest.param(
            *("multi_worker_mirrored", "predicting", "predict", "worker:0", {"workers": 2}),
            marks=pytest.mark.again,
        ),
        ("parameter_server_sync", "fitting", "fit", "worker:1", {"workers": 2, "ps": 2}),
        pytest.param(
            *("parameter_server", "predicting", "predict", "ps:0", {"workers": 1, "ps": 1}),
            marks=pytest.mark.again,
        ),
    ],
)
def test_whatever_is_lost_is_named(tmp_path, strategy, case, what, lost, shape):
    with begun(tmp_path, strategy, case, **shape) as (running, _):
        _, named = lose(running, lost)
        finished = running.wait(LONGEST, failures_expected=True)

    survivor = next(name for name in ("chief:0", "worker:0", "worker:1") if name in finished.exit_codes)
    says(finished, survivor, what, named)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "name"), [("parameter_server_sync", "worker:1"), ("parameter_server", "ps:0")]
)
def test_a_silent_task_of_a_script_ends_it(tmp_path, strategy, name):
    # The chief alone is impatient: the others end when it has ended, and not before on a busy machine.
    impatient = {"start": {"heartbeat_timeout": 12.0}}
    of = {"more": {"start": {}}, "of": {"chief:0": impatient}}
    with begun(tmp_path, strategy, "fitting", **of, workers=2, ps=1) as (running, _):
        silent, _ = lose(running, name, by=signal.SIGSTOP)
        try:
            finished = running.wait(LONGEST, failures_expected=True)
        finally:
            silent.kill()

    assert set(finished.exit_codes.values()) == {138}
    address = running.cluster.address(Task.parse(name))
    assert re.search(re.escape(f"{name} at {address}") + r":? silent for \d", finished.logs["chief:0"])


@pytest.mark.slow
def test_a_worker_of_its_own_pace_may_go_and_come_back(tmp_path):
    with begun(tmp_path, "parameter_server", "surviving", workers=2, ps=1) as (running, order):
        lose(running, "worker:1")
        (tmp_path / "killed").touch()
        running.wait_for("without")
        running.start(Task("worker", 1), order)
        finished = running.wait(LONGEST)

    found = finished.results["chief:0"]["lost_cases.surviving"]
    assert found["epochs"] >= 2  # one without the worker, and one with it
    assert found["iterations"] == 50 * found["epochs"]


@pytest.mark.slow
def test_a_worker_that_comes_back_reads_the_order_of_the_pass(tmp_path):
    case = "pass_cases.with_a_lost_worker"
    with begun(tmp_path, "parameter_server", case, workers=2, ps=1) as (running, order):
        lose(running, "worker:1")
        running.start(Task("worker", 1), order)
        (tmp_path / "again").touch()
        finished = running.wait(LONGEST)

    found = finished.results["chief:0"][case]
    passes = [{tuple(batch) for batch in batches} for batches in found["paused"]]
    assert passes == [{tuple(batch) for batch in batches} for batches in found["expected"]]
    assert passes[0] != passes[1]


@pytest.mark.slow
def test_a_worker_of_its_own_pace_that_is_told_to_end_ends_alone(tmp_path):
    shape = {"workers": 2, "ps": 1, "more": {"seconds_to_clean_up": 6}}
    with begun(tmp_path, "parameter_server", "until_told", **shape) as (running, _):
        worker, _ = lose(running, "worker:1", by=signal.SIGTERM)
        assert worker.wait() == 138  # after it has served for as long as the chief might save
        time.sleep(5)
        (tmp_path / "enough").touch()
        finished = running.wait(LONGEST)

    assert finished.exit_codes == {"chief:0": 0, "worker:0": 0, "ps:0": 0}
    found = finished.results["chief:0"]["lost_cases.until_told"]
    assert found["weight"] == found["iterations"] > 0
    assert "SIGTERM: this task was told to end" in (tmp_path / "worker:1.log").read_text()


@pytest.mark.slow
def test_a_worker_of_its_own_pace_whose_connection_to_a_ps_breaks_ends_alone(tmp_path):
    with begun(tmp_path, "parameter_server", "cut_off", workers=2, ps=1) as (running, _):
        worker = running.processes.pop("worker:1")
        assert worker.wait() == 138
        time.sleep(10)  # for longer than the ps keeps its error back
        (tmp_path / "enough").touch()
        finished = running.wait(LONGEST)

    found = finished.results["chief:0"]["lost_cases.cut_off"]
    assert found["weight"] == found["iterations"] > 0
    assert "has no connection to a ps any more" in (tmp_path / "worker:1.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "counted",
        pytest.param("counted_by_own_step", marks=pytest.mark.again),
        pytest.param("counted_of_chief", marks=pytest.mark.again),
    ],
)
def test_a_step_of_a_lost_worker_counts_once(tmp_path, case):
    with begun(tmp_path, "parameter_server", case, workers=2, ps=1) as (running, _):
        lose(running, "worker:1")
        (tmp_path / "lost").touch()
        finished = running.wait(LONGEST)

    found = finished.results["chief:0"][f"lost_cases.{case}"]
    assert found["iterations"] == 120
    assert found["weight"] == 120


@pytest.mark.slow
def test_a_step_of_a_silent_worker_counts_once_and_holds_nobody_up(tmp_path):
    # Its patience, 5 s less than this, is less than that of the chief, which watches it for 16 s.
    of = {"worker:1": {"serve": {"heartbeat_timeout": 16.0}}}
    with begun(tmp_path, "parameter_server", "counted_without_the_silent", of=of, workers=2, ps=1) as (
        running,
        _,
    ):
        worker, _ = lose(running, "worker:1", by=signal.SIGSTOP)
        try:
            running.until(lambda: " silent for " in running.log("chief:0"), "the chief misses worker:1")
            (tmp_path / "lost").touch()
            finished = running.wait(LONGEST)
            os.killpg(worker.pid, signal.SIGCONT)
            assert worker.wait() == 138
        finally:
            worker.kill()

    found = finished.results["chief:0"]["lost_cases.counted_without_the_silent"]
    assert found["iterations"] == 120
    assert found["weight"] == 120
    assert "take over the steps of" not in finished.logs["chief:0"]  # which comes after two minutes
    assert "was stopped for" in (tmp_path / "worker:1.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "comes_back"),
    [
        ("every_example_once", True),
        ("every_example_tested_once", False),
        pytest.param("every_example_once", False, marks=pytest.mark.again),
        pytest.param("every_example_tested_once", True, marks=pytest.mark.again),
    ],
)
def test_every_example_counts_once_though_a_worker_is_lost(tmp_path, case, comes_back, monkeypatch):
    monkeypatch.setenv(ONLY_PEERS, "1")
    with begun(tmp_path, "parameter_server", case, workers=2, ps=1) as (running, order):
        assert [
            each for each in running.cluster.tasks() if is_open_for_strangers(running.cluster.address(each))
        ] == []
        lose(running, "worker:1")
        if comes_back:
            running.start(Task("worker", 1), order)
        (tmp_path / "lost").touch()
        finished = running.wait(LONGEST)

    found = finished.results["chief:0"][f"lost_cases.{case}"]
    trained = {"seen": [2.0], "steps": 100, "iterations": 200} if case == "every_example_once" else {}
    assert found == {**trained, "mean": 199.5, "predicted": 400}
    if not comes_back:
        assert "other workers read what is left of its part" in finished.logs["chief:0"]


@pytest.mark.slow
def test_a_worker_of_its_own_pace_may_fall_silent(tmp_path):
    cases = ["lost_cases.given_up_before", "lost_cases.whole_epochs", "lost_cases.silenced"]
    finished = run_cluster(tmp_path, "parameter_server", cases, workers=2, ps=1)
    refused = finished.chief["lost_cases.given_up_before"]
    assert "the chief has given this execution to another worker" in refused["error"]
    assert refused["iterations"] == 0
    assert finished.chief["lost_cases.whole_epochs"] == 60
    # What the silent worker was given, the other did in its place.
    assert finished.chief["lost_cases.silenced"] == {"epochs": 4, "iterations": 200}
    text = "1 of 2 workers have ended no step for a long time: the others take over the steps of worker:1 at"
    assert text in finished.logs["chief:0"]
