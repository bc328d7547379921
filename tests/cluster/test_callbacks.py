"""Keras callbacks decide alike everywhere, write on the chief alone, and take interrupted training up again."""

import contextlib
import csv
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import LONGEST, SETUPS, Finished, Running, on

from again import again
from tfdist.cluster.config import ClusterConfig

WRITING, STOPPING, RESUMING = (f"callback_cases.{name}" for name in ("writing", "stopping", "resuming"))
SETTING = "callback_cases.setting"
READING, LOADING = "callback_cases.reading", "callback_cases.loading"
CASES = [WRITING, STOPPING, SETTING, READING, LOADING]
EPOCHS, STEPS_PER_EPOCH = 4, 9
# What calls the callbacks is the same for mirrored workers, and for workers at their own pace.
STRATEGIES = on(SETUPS, again=["mirrored", "parameter_server_sync"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_callbacks_decide_and_write(strategy, finished):
    writing = finished(strategy).chief[WRITING]

    assert writing["epochs"] == 2  # EarlyStopping
    assert writing["steps"] == 2 * STEPS_PER_EPOCH
    assert writing["rate"] == pytest.approx(0.1 * 0.5 * 0.5 * 0.5)  # two halvings, and one on the plateau
    rows = list(csv.DictReader(writing["csv"]))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert any(name.startswith("best") for name in writing["written"])
    boards = [name.split("/")[1] for name in writing["written"] if "events.out.tfevents" in name]
    assert sorted(boards) == ["train", "validation"]
    assert not any(name.startswith("backup") for name in writing["written"])  # Keras removes it at the end


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_workers_decide_alike_and_do_not_write(strategy, finished):
    found = finished(strategy)

    for result in found.results.values():
        mine, chiefs = result[WRITING], found.chief[WRITING]
        assert {**mine, "csv": [], "written": []} == {**chiefs, "csv": [], "written": []}
        if result is not found.chief:
            assert mine["written"] == []


@pytest.mark.parametrize("strategy", ["parameter_server_sync"])
def test_a_step_reads_what_a_callback_has_set_before(strategy, finished):
    losses = finished(strategy).chief[SETTING]["losses"]

    means = [sum(value**2 for value in range(step + 1)) / (step + 1) for step in range(len(losses))]
    assert losses == pytest.approx(means)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_a_worker_that_stops_alone_stops_all(strategy, finished):
    for result in finished(strategy).results.values():
        epochs_and_steps = result[STOPPING]
        assert epochs_and_steps == {
            "batch": [1, 4],
            "early": [2, 2 * STEPS_PER_EPOCH],
            "nan": [1, 3],
        }


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_one_worker_alone_may_read_a_metric(strategy, finished):
    chief, other = (result[READING] for result in finished(strategy).results.values())
    if chief is None:
        pytest.skip("Keras 2 reads metrics by an exchange")

    for pair in (*chief["read"], *chief["after"]):
        assert pair[0] == pytest.approx(pair[1], rel=1e-6)
    assert len(chief["read"]) == 2 * 2 * (STEPS_PER_EPOCH + 2)
    assert chief["read"][len(other["read"]) :] == other["read"]
    assert chief["after"] == other["after"]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_workers_load_what_the_chief_has_written_behind_a_barrier(strategy, finished):
    chief, other = (result[LOADING] for result in finished(strategy).results.values())

    assert chief == other
    told = [log.count("OwnCheckpoint runs on the chief alone") for log in finished(strategy).logs.values()]
    assert told == [1, 0] or finished(strategy).chief[READING] is None  # each worker of Keras 2 runs it


def interrupted(folder: Path, strategy: str) -> Finished:
    """Run training that kills itself in the middle, and start it again."""
    shape = {key: size for key, size in SETUPS[strategy].items() if key != "options"}
    options = SETUPS[strategy].get("options", {})
    order = {"strategy": strategy, "options": options, "cases": [RESUMING], "folder": str(folder)}
    with started(folder, shape, order) as running:
        end = time.monotonic() + LONGEST
        while all(each.poll() is None for each in running.processes.values()) and time.monotonic() < end:
            time.sleep(0.05)
        assert -signal.SIGKILL in [each.poll() for each in running.processes.values()]
    with started(folder, shape, order) as running:
        return running.wait(LONGEST)


@contextlib.contextmanager
def started(folder: Path, shape: dict[str, int], order: dict[str, Any]) -> Iterator[Running]:
    cluster = ClusterConfig.local(**shape) if shape else ClusterConfig()
    with Running(folder, cluster) as running:
        for task in cluster.tasks() or (None,):
            running.start(task, order)
        yield running


@pytest.mark.parametrize(
    "strategy",
    [
        "multi_worker_mirrored",
        again("one_device"),
        pytest.param("parameter_server", marks=pytest.mark.slow),
    ],
)
def test_training_that_was_killed_goes_on(strategy, tmp_path):
    found = interrupted(tmp_path, strategy)

    chief = found.chief[RESUMING]
    assert chief["left"] == ["notes.npz"]  # the backup is removed in the end
    for result in found.results.values():  # also those on whose disk there is no backup
        assert result[RESUMING]["differs"] == []  # no weight, and nothing of the optimizer
        assert result[RESUMING]["begun"] == result[RESUMING]["epochs"] == [2, 3]
        assert result[RESUMING]["iterations"] == EPOCHS * STEPS_PER_EPOCH
        assert result[RESUMING]["weights"] == chief["weights"]
    if strategy != "parameter_server":  # whose workers' updates come in another order each time
        for mine, at_once in zip(chief["weights"], chief["at_once"], strict=True):
            assert np.array(mine) == pytest.approx(np.array(at_once), rel=1e-4, abs=1e-6)
