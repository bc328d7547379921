"""A cluster as a place to compute, on real processes: jobs of any name, some of which are lost meanwhile."""

import re

import numpy as np
import pytest
from clusters import LONGEST, Running
from remote_cases import SLICES

from tfdist.cluster.config import ClusterConfig, Task

CASES = ["placed", "mapped", "failing", "killed", "stopped"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    cluster = ClusterConfig.local(workers=2, chief=1, jobs={"reader": 1})
    order = {"strategy": "connect", "options": {}, "folder": str(folder)}
    order["cases"] = [f"remote_cases.{name}" for name in CASES]
    with Running(folder, cluster) as running:
        for task in cluster.tasks():
            running.start(task, order)
        stopped = running.processes.pop("reader:0")
        try:
            found = running.wait(LONGEST, failures_expected=True)
        finally:
            stopped.kill()
    assert found.exit_codes == {"chief:0": 0, "worker:0": 0, "worker:1": -9}, found.logs
    return {name.partition(".")[2]: case for name, case in found.chief.items()}


def test_a_block_runs_on_the_task_that_is_chosen(finished):
    found = finished["placed"]
    assert list(found["pids"]) == ["worker:0", "worker:1", "reader:0"]
    assert len({found["own"], *found["pids"].values()}) == 4
    assert found["devices"] == [
        f"/job:{each}/device:CPU:0" for each in ("reader/replica:0/task:0", "worker/replica:0/task:1")
    ]
    assert found["doubled"] == [2.0, 4.0]
    assert "expected one of worker:0, worker:1, reader:0, received worker:2" in found["unknown"]
    assert "worker:1: has no GPU:0 for TensorFlow" in found["no_gpu"]
    assert "device: is unknown: 'cup'. Did you mean 'cpu'?" in found["no_kind"]


def test_unequal_slices_give_the_mean_of_the_whole(finished):
    found, pids = finished["mapped"], finished["placed"]["pids"]
    assert found["sizes"] == [len(each) for each in SLICES]
    assert found["mean"] == pytest.approx(found["whole"], rel=1e-14)
    assert found["plain"] == pytest.approx(np.mean(found["losses"]), rel=1e-14)
    assert found["plain"] != pytest.approx(found["whole"][0], rel=0.01)
    assert found["joined"] == np.concatenate(SLICES).tolist()
    assert [found["sum"], found["least"], found["of_whole_numbers"]] == [6, 1, 1.5]
    assert found["pids"] == sorted(pids.values()), "every task had a part in it"
    assert found["worker_pids"] == sorted(pids[name] for name in ("worker:0", "worker:1"))
    assert "cannot know the sizes of values that map did not return" in found["no_sizes"]
    assert "reduce: the values cannot be combined" in found["no_shape"]
    assert "slice 0: has parts of different lengths" in found["no_size"]


def test_a_mistake_in_the_function_is_raised_and_costs_no_task(finished):
    found = finished["failing"]
    assert found["errors"][0].startswith("KeyError")
    assert found["errors"][1].startswith("InvalidArgumentError")
    assert "x is not below 0" in found["errors"][1]
    assert found["all_there"]


@pytest.mark.parametrize(("case", "left"), [("killed", ["worker:0", "reader:0"]), ("stopped", ["worker:0"])])
def test_the_slices_of_a_lost_task_are_computed_by_the_others(finished, case, left):
    found = finished[case]
    assert found["squares"] == [float(i * i) for i in range(12)]
    assert found["again"] == [(each * each).tolist() for each in SLICES]
    assert found["left"] == left


def test_a_lost_task_is_named_where_it_is_asked_for(finished):
    assert re.match(r"TaskLost: worker:1 at 127.0.0.1:\d+: is gone", finished["killed"]["asked_for_lost"])
    left = "TaskLost: map: job 'reader': no such task is connected; these tasks are: worker:0"
    assert finished["stopped"]["none_left"] == left


@pytest.mark.slow
def test_a_lost_task_is_taken_back(tmp_path):
    cluster = ClusterConfig.local(workers=2, chief=1, jobs={"reader": 1})
    order = {"strategy": "connect", "options": {}, "folder": str(tmp_path)}
    order["cases"] = ["remote_cases.returning"]
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            running.start(task, order)
        running.wait_for("killed", ended=["worker:1"])
        running.processes["worker:1"].wait()
        running.start(Task("worker", 1), order)
        new = running.processes["worker:1"].pid
        found = running.wait(LONGEST)
    case, old = found.chief["remote_cases.returning"], found.chief["remote_cases.returning"]["pids"]
    reader, silent, killed = old["reader:0"], old["worker:0"], old["worker:1"]
    for when, computing in (
        ("whole", {reader, silent, killed}),
        ("without_killed", {reader, silent}),
        ("with_new", {reader, silent, new}),
        ("without_silent", {reader, new}),
        ("with_all", {reader, silent, new}),
    ):
        # The reader's variable has been there all the time.
        assert case[when] == {"values": [2.0 * i for i in range(12)], "pids": sorted(computing)}, when
    for name in ("worker:0", "worker:1"):
        assert f"{name} at {cluster.address(Task.parse(name))} is back" in found.logs["chief:0"]


@pytest.mark.slow
def test_variables_on_a_lost_task_are_lost_with_it(tmp_path):
    cluster = ClusterConfig.local(workers=1, chief=1, jobs={"reader": 2})
    order = {"strategy": "connect", "options": {}, "cases": ["remote_cases.leaving"], "folder": str(tmp_path)}
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            running.start(task, order)
        found = running.wait(LONGEST, failures_expected=True)
    assert found.exit_codes == {"chief:0": 0, "worker:0": -9, "reader:0": 0, "reader:1": 0}, found.logs
    case = found.chief["remote_cases.leaving"]
    assert case["first"] == [2.0, 4.0]
    address = cluster.address(Task("worker", 0))
    assert case["problem"].startswith(f"TaskLost: worker:0 at {address}: is gone, and what reader:")
