"""The callbacks of a config continue on every worker of a cluster that is started again."""

import json

import numpy as np
import pytest

from commands import tfdist

MODEL = """
import tensorflow as tf
def build(image_shape, classes):
    layers = [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(classes)]
    return tf.keras.Sequential([tf.keras.Input(image_shape), *layers])
"""
# Nothing counts as an improvement: the learning rate is halved after each epoch, and the fourth is the last.
CONFIG = """
data: {name: data.npz, batch_size: 50}
model: {name: flat:build}
train:
  epochs: 9
  optimizer: momentum
  learning_rate: 0.05
  schedule: constant
  callbacks:
    - {name: reduce_lr_on_plateau, monitor: loss, min_delta: 100, patience: 1, factor: 0.5}
    - {name: early_stopping, monitor: loss, min_delta: 100, patience: 3, restore_best_weights: true}
export: {formats: []}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "cluster"),
    [
        ("multi_worker_mirrored", "{worker: 2}"),
        pytest.param("parameter_server_sync", "{chief: 1, worker: 2, ps: 1}", marks=pytest.mark.again),
    ],
)
def test_a_cluster_that_is_started_again_ends_as_one_without_a_stop(tmp_path, strategy, cluster):
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 300), ("test", 40)):
        arrays[f"x_{split}"] = random.integers(0, 256, (count, 4, 4, 1), np.uint8)
        arrays[f"y_{split}"] = random.integers(0, 3, count)
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "flat.py").write_text(MODEL)
    text = f"{CONFIG}cluster: {cluster}\nstrategy: {{name: {strategy}}}\n"
    (tmp_path / "train.yaml").write_text(text)

    def train(run_dir, *more):
        words = ["train", "--config=train.yaml", f"--run_dir={run_dir}", *more]
        done = tfdist(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / run_dir / "report.json").read_text())

    whole = train("whole")
    assert train("parts", "--set=train.epochs=2")["steps"] == 12
    parts = train("parts")
    assert (parts["steps"], parts["begun_at_step"]) == (whole["steps"], 12)
    assert whole["steps"] == 24
    assert parts["test_loss"] == whole["test_loss"]
