"""A loss that is no number, and a task that is slow, on real clusters by the command that a user types."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from test_train import _variables, train_config

import proc
from tfdist.datasets.open_data import open_data
from tfdist.training.checkpoints.checkpoint_files import list_steps

UNIT = Path(__file__).parents[1] / "unit" / "trainer"
sys.path.append(str(UNIT))
pytestmark = pytest.mark.usefixtures("forking")
STEPS = ["--set=data.name=digits", "--set=model.name=odd_model:build", "--set=checkpoint.every=3", "--set=train.steps_per_execution=3", "--set=evaluation.batches=1", "--set=summaries.every=2"]  # fmt: skip


@pytest.fixture
def stumble(tmp_path, cache):
    """Train a shipped config's cluster with a model to which one image of a global batch is odd."""
    import odd_model

    def run(name, *changes, batch=7, **environ):
        image = odd_model.image_of(open_data("digits", cache_dir=cache), batch=batch, place=100)
        np.save(tmp_path / "odd.npy", image)
        return train_config(
            name,
            "--run_dir",
            tmp_path / "run",
            *STEPS,
            *changes,
            TFDIST_CACHE_DIR=cache,
            PYTHONPATH=os.pathsep.join(filter(None, (str(UNIT), os.environ.get("PYTHONPATH")))),
            ODD_IMAGE=str(tmp_path / "odd.npy"),
            ODD_DOES="nan",
            **environ,
        )

    return run


def test_all_tasks_end_at_the_step_and_a_slow_one_was_named(stumble, tmp_path):
    # Steps for several comparisons: in one or another, this machine may be busy while worker 0 computes.
    options = ["--set=train.steps=20", "--set=train.steps_per_execution=1"]
    run = stumble("mwms2w", *options, batch=11, ODD_SLEEPS="1")

    assert run.returncode == 1, run.stdout + run.stderr
    said = (
        "tfdist: train: the loss became NaN at step 12, on worker:1 first. The checkpoint of step 9 is kept; lower "
        "train.learning_rate, or set train.on_nan: skip\n"
    )
    chief, other = ((tmp_path / "run" / "logs" / f"worker-{index}.log").read_text() for index in (0, 1))
    assert chief.count(said) == 1
    assert other.count(said) == 1
    assert said.strip() in run.stdout + run.stderr
    assert "(restart " not in run.stdout + run.stderr
    nothing_but_checkpoints(tmp_path / "run")
    slow = r"worker:1 at \S+:\d+ takes \d+ ms a step, [\d.]+ times the median of the others \([\d.]+ ms\)\n"
    assert re.search(slow, chief), chief
    assert " ms a step" not in other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "where"),
    [
        pytest.param("mirrored", "at step 8, on replica 1 first", marks=pytest.mark.again),
        ("ps2w-sync", "at step 8, on worker:1 first"),
        pytest.param("ps2w", r"at step \d+, on worker:[01] first", marks=pytest.mark.again),
    ],
)
def test_every_strategy_stops(name, where, stumble, tmp_path):
    run = stumble(name, "--set=train.steps=40")

    assert run.returncode == 1, run.stdout + run.stderr
    kept = r"The checkpoint of step \d+ is kept" if name == "ps2w" else "The checkpoint of step 6 is kept"
    assert re.search(rf"tfdist: train: the loss became NaN {where}\. {kept}", run.stdout + run.stderr), (
        run.stderr
    )
    nothing_but_checkpoints(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mwms2w", pytest.param("ps2w-sync", marks=pytest.mark.again)])
def test_a_cluster_leaves_the_batch_out_and_so_does_one_that_goes_on(name, stumble, tmp_path):
    options = ["--set=train.steps=11", "--set=train.on_nan=skip", "--set=train.schedule=constant"]
    run = stumble(name, *options)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["steps"], report["skipped_batches"]) == (11, [7])
    chief = (tmp_path / "run" / "logs" / ("worker-0.log" if name == "mwms2w" else "chief-0.log")).read_text()
    assert re.findall("going back to step 6, (.*)", chief) == [
        "to find the batch that caused it",
        "and continuing without batch 7",
    ]
    last = tmp_path / "run" / "checkpoints" / "11"
    straight = _variables(last)
    shutil.rmtree(last)

    resumed = stumble(name, *options)

    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["begun_at_step"], report["skipped_batches"]) == (9, [7])
    assert _variables(last) == straight
    assert proc.naming(tmp_path) == []


def nothing_but_checkpoints(folder):
    """Check that nothing was made of a model that is broken, and that no process lives on."""
    import tensorflow as tf

    assert not (folder / "export").exists()
    assert not (folder / "report.json").exists()
    assert list_steps(folder / "checkpoints")
    for step in list_steps(folder / "checkpoints"):
        reader = tf.train.load_checkpoint(str(folder / "checkpoints" / str(step) / "variables"))
        values = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
        assert all(np.isfinite(value).all() for value in values), step
    assert proc.naming(folder) == []
