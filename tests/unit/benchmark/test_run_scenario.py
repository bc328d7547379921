"""A trial gives what its tasks have found, or what the first that failed has said, and leaves nothing."""

import contextlib
import sys
import tempfile

import pytest

from tfdist.benchmark.run_scenario import try_out
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import TfdistError

WRITE = """
import json, os, pathlib, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
pathlib.Path(sys.argv[1], f"worker-{index}.json").write_text(json.dumps({"index": index, "given": os.environ["GIVEN"]}))
"""
FAIL = "import sys; print('noise'); print('tfdist: a.key: expected this, received that', file=sys.stderr); sys.exit(2)"
# For long enough that the system's clock ticks, of which there are 100 in a second.
WORK = "import time\nwhile time.process_time() < 1: pass"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


def test_what_each_task_has_written_is_given():
    trial = try_out(ClusterConfig.local(2), [sys.executable, "-c", WRITE], env={"GIVEN": "x"})
    assert trial.written == {f"worker-{index}": {"index": index, "given": "x"} for index in (0, 1)}


def test_a_task_that_fails_is_heard_and_its_status_kept():
    with pytest.raises(TfdistError, match=r"^worker:0: a\.key: expected this, received that$") as caught:
        try_out(ClusterConfig.local(1), [sys.executable, "-c", FAIL])
    assert caught.value.exit_code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="others' work is seen in /proc/stat")
def test_the_work_of_the_tasks_is_not_taken_for_that_of_others(monkeypatch):
    busy = iter([100.0, 101.0])
    monkeypatch.setattr("tfdist.benchmark.run_scenario._busy_seconds", lambda: next(busy))
    # On cores that worked for one second, a task did all of it.
    assert try_out(ClusterConfig.local(1), [sys.executable, "-c", WORK]).outside == 0.0
    busy = iter([100.0, 110.0])
    monkeypatch.setattr("tfdist.benchmark.run_scenario._busy_seconds", lambda: next(busy))
    assert try_out(ClusterConfig.local(1), [sys.executable, "-c", WORK]).outside > 0.0


def test_servers_without_proc_leave_the_processor_seconds_out(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    from tfdist.benchmark import measure_task

    cluster = ClusterConfig.local(workers=1, ps=1).with_task("chief", 0)

    def read_file(path):
        raise tf.errors.NotFoundError(None, None, path)

    monkeypatch.setattr(measure_task.tf, "device", lambda name: contextlib.nullcontext())
    assert list(measure_task.processor_seconds(cluster)) == ["chief:0", "worker:0", "ps:0"]
    monkeypatch.setattr(measure_task.tf.io, "read_file", read_file)
    assert measure_task.processor_seconds(cluster) == {}
