"""A run chooses how many steps a call of the graph takes, and that changes no number."""

from pathlib import Path

import pytest
import tensorflow as tf

from curves import curve
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import ServerTermination
from tfdist.coordination.stop_signals import Notice
from tfdist.datasets.open_data import open_data
from tfdist.trainer.config import read_config
from tfdist.trainer.model_of_config import compiled_model
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.step_counts import steps_per_call
from tfdist.trainer.train_loop import Run
from tfdist.training.workers import choose_steps_per_call as module

CONFIGS = Path(__file__).parents[3] / "configs"
keras = tf.keras


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data("digits", examples=(640, 100), cache_dir=tmp_path_factory.mktemp("cache"))


def config_with(*changes):
    return read_config(CONFIGS / "local.yaml", ("model.name=own_objects:build", *changes)).config


def test_a_chosen_number_gives_the_weights_and_curves_of_single_steps(data, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_TO_MEASURE", 0.0)
    weights, curves, calls = [], [], []

    class Recorded(module.StepsPerCall):
        def after_call(self, steps):
            super().after_call(steps)
            calls[-1].append(steps)

    for changes in (["train.steps_per_execution=1"], []):
        calls.append([])
        config = config_with("train.steps=60", "summaries.every=20", "evaluation.every=50", *changes)
        keras.utils.set_random_seed(config.train.seed)
        context = RunContext(
            config,
            ClusterConfig(),
            tf.distribute.get_strategy(),
            data,
            RunFolder.at(tmp_path / str(len(calls))),
            Notice(),
            ServerTermination(()),
        )
        model = compiled_model(config, data, "logits")
        with monkeypatch.context() as patched:
            patched.setattr("tfdist.trainer.step_counts.StepsPerCall", Recorded)
            run = Run(context, model)
        run.train()
        run.close()
        weights.append(model.get_weights())
        curves.append(curve(context.folder.root, "train", "loss"))

    assert calls[0] == [1] * 60
    assert calls[1][0] == 1
    assert sum(calls[1]) == 60
    assert len(calls[1]) < 30
    assert [each.tolist() for each in weights[0]] == [each.tolist() for each in weights[1]]
    assert curves[0] == curves[1]
    assert len(curves[1]) == 3


@pytest.mark.parametrize(
    ("changes", "compiled_with", "number"),
    [
        (["train.steps_per_execution=3"], 1, 3),
        ([], 4, 4),
        (["train.callbacks=[terminate_on_nan]"], 1, 1),
        ([], 1, None),
    ],
)
def test_what_is_said_is_kept(data, changes, compiled_with, number):
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", "mse", steps_per_execution=compiled_with)

    calls = steps_per_call(config_with(*changes), data, model, workers=0)

    assert (calls.number if calls.is_fixed else None) == number


def test_asynchronous_workers_meet_at_checkpoints_without_long_waits(data, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_TO_MEASURE", 0.0)
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", "mse")

    calls = steps_per_call(config_with("checkpoint.every=40", "evaluation.every=100"), data, model, workers=4)
    for _ in range(3):
        calls.after_call(1000)

    assert calls.wanted == 5
