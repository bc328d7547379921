"""ps tasks and workers end when the chief does, however it goes, and say so when it is merely silent."""

import contextlib
import os
import signal
import socket
import time

import pytest
from clusters import LONGEST, Running

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import hold_rendezvous
from tfdist.errors import TaskLost


@contextlib.contextmanager
def running(tmp_path, case, **more):
    cluster = ClusterConfig.local(workers=1, ps=1)
    order = {"strategy": "parameter_server", "options": {}, "cases": [case], "folder": str(tmp_path), **more}
    with Running(tmp_path, cluster) as started:
        for task in cluster.tasks():
            started.start(task, order)
        yield started


def test_ends_when_the_chief_is_killed(tmp_path):
    with running(tmp_path, "waiting") as started:
        started.wait_for("connected")
        os.kill(started.processes["chief:0"].pid, signal.SIGKILL)
        finished = started.wait(LONGEST, failures_expected=True)

    assert finished.exit_codes == {"chief:0": -9, "worker:0": 138, "ps:0": 138}
    assert "is gone: killed, or lost with its machine" in finished.logs["ps:0"]


def test_serves_on_for_the_chief_when_told_to_end(tmp_path):
    with running(tmp_path, "waiting") as started:
        started.wait_for("connected")
        for name in ("ps:0", "worker:0"):
            started.until_in(name, "_wait_until_gone")  # where it heeds signals
            os.kill(started.processes[name].pid, signal.SIGTERM)
        (tmp_path / "told").touch()
        finished = started.wait(LONGEST, failures_expected=True)

    # The chief said that it was done, so there is nothing to start again.
    assert finished.exit_codes == {"chief:0": 0, "worker:0": 0, "ps:0": 0}
    assert finished.results["chief:0"]["waiting"] == 3.0, "the ps answered after SIGTERM"


def test_ends_when_the_chief_fails(tmp_path):
    with running(tmp_path, "failing") as started:
        finished = started.wait(LONGEST, failures_expected=True)

    assert finished.exit_codes == {"chief:0": 1, "worker:0": 0, "ps:0": 0}, finished.logs


def test_reports_a_chief_that_is_silent(tmp_path):
    with running(tmp_path, "waiting", serve={"heartbeat_timeout": 12.0}) as started:
        started.wait_for("connected")
        chief = started.processes.pop("chief:0")
        os.kill(chief.pid, signal.SIGSTOP)
        try:
            finished = started.wait(LONGEST, failures_expected=True)
        finally:
            chief.kill()

    assert finished.exit_codes == {"worker:0": 138, "ps:0": 138}
    assert "TaskLost: chief at" in finished.logs["ps:0"]
    assert "silent" in finished.logs["ps:0"]


def test_reports_a_chief_that_never_comes(tmp_path):
    cluster = ClusterConfig.local(workers=1, ps=1)
    with Running(tmp_path, cluster) as started:
        started.start(Task("ps", 0), {"serve": {"start_timeout": 1.0}})
        finished = started.wait(LONGEST, failures_expected=True)

    assert finished.exit_codes == {"ps:0": 138}
    awaited = f"chief:0 at {cluster.address(('chief', 0))}: connection refused"
    assert f"TaskLost: serve: waited 1 s for {awaited}. Start it, or see its log" in finished.logs["ps:0"]


def test_a_rendezvous_fails_where_one_of_the_tasks_trains_already(tmp_path):
    cluster = ClusterConfig.local(workers=1, ps=1)
    trains, free = cluster.ps[0], cluster.worker[0]
    with Running(tmp_path, cluster) as started:
        started.start(Task("ps", 0), {})
        late = ClusterConfig(worker=(trains, free), task=("worker", 1))
        _until_it_fails(late, "its TensorFlow server answers, so training runs without this task")
        early = ClusterConfig(worker=(free, trains), task=("worker", 0))
        _until_it_fails(early, "still runs TensorFlow's server of an earlier start")


def _until_it_fails(cluster, why):
    """Repeat a rendezvous until it fails for this reason: at first the other task may not answer."""
    end, said = time.monotonic() + LONGEST, ""
    while why not in said:
        assert time.monotonic() < end, said
        with pytest.raises(TaskLost) as failed:
            hold_rendezvous(cluster, "", timeout=0.5)
        said = str(failed.value)


def test_strategies_name_whom_they_wait_for(tmp_path):
    """The chief of a parameter-server cluster, and one of two mirrored workers, beside each other."""
    (tmp_path / "ps").mkdir()
    (tmp_path / "mirrored").mkdir()
    order = {"options": {"start_timeout": 2.0}, "cases": [], "folder": str(tmp_path)}
    with (
        Running(tmp_path / "ps", ClusterConfig.local(workers=1, ps=1)) as ps,
        Running(tmp_path / "mirrored", ClusterConfig.local(workers=2)) as mirrored,
    ):
        ps.start(Task("chief", 0), {**order, "strategy": "parameter_server"})
        mirrored.start(Task("worker", 1), {**order, "strategy": "multi_worker_mirrored"})
        ends = [each.wait(LONGEST, failures_expected=True) for each in (ps, mirrored)]

    for running, finished, name, awaited in (
        (ps, ends[0], "chief:0", ["worker:0", "ps:0"]),
        (mirrored, ends[1], "worker:1", ["worker:0"]),
    ):
        log = finished.logs[name]
        assert finished.exit_codes == {name: 138}, log
        address = running.cluster.address
        said = "; ".join(f"{each} at {address(Task.parse(each))}: connection refused" for each in awaited)
        assert f"TaskLost: make_strategy: waited 2 s for {said}. Start it, or see its log" in log


@pytest.mark.parametrize("task", [Task("ps", 0), Task("chief", 0)])
def test_a_taken_port_is_the_users_to_free(tmp_path, task):
    cluster = ClusterConfig.local(workers=1, ps=1)
    with (
        socket.create_server(("", int(cluster.address(task).rpartition(":")[2]))),
        Running(tmp_path, cluster) as started,
    ):
        started.start(task, {"strategy": "parameter_server", "options": {}, "cases": [], "folder": ""})
        finished = started.wait(LONGEST, failures_expected=True)

    assert finished.exit_codes == {str(task): 2}
    assert (
        f"ConfigError: {task} at {cluster.address(task)}: cannot be listened on" in finished.logs[str(task)]
    )
