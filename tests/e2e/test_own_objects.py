"""Train with an optimizer, a loss, metrics and callbacks that a config names, by the command that a user types."""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from again import again
from commands import python, tfdist_forked
from tfdist.datasets.open_data import open_data

UNIT = Path(__file__).parents[1] / "unit" / "trainer"
CONFIGS = Path(__file__).parents[2] / "configs"
pytestmark = pytest.mark.usefixtures("forking")


@pytest.mark.parametrize(
    "name",
    [
        "mirrored",
        *map(again, ("ps2w", "mwms2w")),
    ],
)
def test_a_config_names_them_and_a_softmax_is_recognised(name, tmp_path, cache):
    import tensorflow as tf

    folder, calls = tmp_path / "run", tmp_path / "calls"
    own = f"{{name: own_objects:recorders, path: {calls}}}"
    changes = [
        "data.name=digits",
        "data.batch_size=6000",
        "model={name: own_objects:build, options: {ending: softmax}}",
        "train={epochs: 9, optimizer: {name: adamw, weight_decay: 0.01}, learning_rate: 0.01, loss:"
        " categorical_crossentropy, metrics: [top_k_categorical_accuracy, {name: f1_score, average: macro}],"
        f" callbacks: [{{name: own_objects:stop, epoch: 1, batch: 9}}, {own}]}}",
    ]
    run = functools.partial(tfdist_forked, "train") if name == "mirrored" else functools.partial(python, "-m", "tfdist.train")  # fmt: skip
    ended = run(
        "--config",
        CONFIGS / f"{name}.yaml",
        "--run_dir",
        folder,
        *(f"--set={change}" for change in changes),
        TFDIST_CACHE_DIR=cache,
        PYTHONPATH=os.pathsep.join(filter(None, (str(UNIT), os.environ.get("PYTHONPATH")))),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 20
    assert set(report["test"]) == {"loss", "accuracy", "top_k_categorical_accuracy", "f1_score"}
    hooks = [json.loads(line)[:2] for line in calls.read_text().splitlines()]
    workers = 2 if name == "mwms2w" else 1
    assert [hooks.count([hook, None]) for hook in ("train_begin", "train_end")] == [workers, workers]
    assert [hooks.count(["epoch_end", epoch]) for epoch in range(3)] == [workers, workers, 0]
    # The scores of the exported model are its outputs, from which the loss follows.
    exported = tf.saved_model.load(str(folder / "export" / "latest")).signatures["serving_default"]
    images, labels = open_data("digits", cache_dir=cache).split("test").arrays()
    keys = tf.range(len(labels), dtype=tf.int64)
    scores = exported(image=tf.constant(np.array(images)), key=keys)["scores"].numpy()
    loss = -np.log(scores[np.arange(len(labels)), labels]).mean()
    assert report["test"]["loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    "build", [again("build_without_input"), again("build_subclassed"), "build_with_own_steps"]
)
def test_a_model_that_makes_its_variables_when_it_is_called_is_exported(build, tmp_path, cache):
    words = ["--config", CONFIGS / "local.yaml", "--set=data.name=digits", "--run_dir", tmp_path / "run"]
    words += [f"--set=model={{name: own_objects:{build}}}"]
    environ = {
        "TFDIST_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(UNIT), os.environ.get("PYTHONPATH")))),
    }
    checked = tfdist_forked("train", *words, "--dry_run", **environ)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "7,850 parameters" in checked.stdout
    ended = tfdist_forked("train", *words, "--smoke", **environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert Path(report["export"], "saved_model.pb").exists()
