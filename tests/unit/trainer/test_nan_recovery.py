"""What a loss that is no number leads to, in one process: what is kept, what is left out, and the same bits."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import odd_model
import pytest
import tensorflow as tf

from again import again
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import ServerTermination
from tfdist.coordination.stop_signals import Notice
from tfdist.datasets.open_data import open_data
from tfdist.errors import ConfigError, NotFinite
from tfdist.trainer.check_without_training import check_without_training
from tfdist.trainer.config import read_config
from tfdist.trainer.model_of_config import compiled_model
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.train_loop import Run
from tfdist.training.checkpoints.checkpoint_files import list_steps

CONFIGS = Path(__file__).parents[3] / "configs"
KEPT = ("checkpoint.every=3", "checkpoint.keep=9")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data("digits", examples=(3000, 100), cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def train(tmp_path, monkeypatch, data):
    """Train on one device; the image in the middle of some global batch is the odd one, or none."""

    def run(does, *changes, batch=4, folder=tmp_path):
        none = -np.ones(data.image_shape)
        np.save(tmp_path / "odd.npy", none if batch is None else odd_model.image_of(data, batch, 77))
        monkeypatch.setenv("ODD_IMAGE", str(tmp_path / "odd.npy"))
        monkeypatch.setenv("ODD_DOES", does)
        changes = ("model.name=odd_model:build", "data.name=digits", "train.steps=8", *KEPT, *changes)
        config = read_config(CONFIGS / "local.yaml", changes).config
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(config.train.seed)
        strategy = tf.distribute.get_strategy()
        context = RunContext(
            config, ClusterConfig(), strategy, data, RunFolder.at(folder), Notice(), ServerTermination(())
        )
        one = Run(context, compiled_model(config, data, "logits"))
        try:
            one.train()
        finally:
            one.close()
        return one

    return run


def kept(folder):
    return list_steps(folder / "checkpoints")


def about(folder, step):
    return json.loads((folder / "checkpoints" / str(step) / "about.json").read_text())


def bits(folder, step):
    reader = tf.train.load_checkpoint(str(folder / "checkpoints" / str(step) / "variables"))
    return [reader.get_tensor(name).tobytes() for name, _, _ in about(folder, step)["variables"]]


@pytest.mark.parametrize(("build", "per_call"), [("build", 1), ("build", 3), ("build_own", 3)])
def test_training_stops_at_the_very_step_and_keeps_what_was_good(train, tmp_path, build, per_call):
    with pytest.raises(NotFinite) as failure:
        train("nan", f"train.steps_per_execution={per_call}", f"model.name=odd_model:{build}")

    assert str(failure.value) == (
        "train: the loss became NaN at step 5. The checkpoint of step 3 is kept; lower train.learning_rate, or "
        "set train.on_nan: skip"
    )
    assert failure.value.exit_code == 1
    assert kept(tmp_path) == [3]


def test_a_variable_that_overflowed_is_not_kept_though_the_loss_was_a_number(train, tmp_path):
    with pytest.raises(
        NotFinite, match=r"the variable model/\d+/.* is NaN or infinite after step 6. The checkp"
    ):
        train("gradient", batch=5)

    assert kept(tmp_path) == [3]


@pytest.mark.parametrize(("does", "batch"), [("nan", 3), ("gradient", 7), again("gradient", 4)])
def test_a_batch_is_left_out_and_no_other(train, tmp_path, does, batch, caplog):
    """Held against a run that was told from its first step on to leave the batch out, and has nothing to fear."""
    with caplog.at_level(logging.INFO, logger="tfdist"):
        skipping = train(does, "train.on_nan=skip", batch=batch)
    assert skipping.skipped_batches == [batch]
    assert skipping.step == 8
    assert f"and continuing without batch {batch}" in caplog.text
    told = tmp_path / "told"
    shutil.copytree(tmp_path / "checkpoints" / "0", told / "checkpoints" / "0")
    facts = about(told, 0)
    assert facts["facts"]["skipped_batches"] == []
    facts["facts"]["skipped_batches"] = [batch]
    (told / "checkpoints" / "0" / "about.json").write_text(json.dumps(facts))

    expected = train(does, batch=None, folder=told)

    assert expected.skipped_batches == [batch]
    assert about(tmp_path, 8)["facts"]["skipped_batches"] == [batch]
    assert bits(told, 8) == bits(tmp_path, 8)


def test_a_run_that_goes_on_after_a_stop_leaves_the_same_out(train, tmp_path):
    train("nan", "train.on_nan=skip", "train.steps_per_execution=2")
    straight = bits(tmp_path, 8)
    shutil.rmtree(tmp_path / "checkpoints" / "8")

    resumed = train("nan", "train.on_nan=skip")

    assert (resumed.begun_at, resumed.skipped_batches) == (6, [4])
    assert bits(tmp_path, 8) == straight


def test_a_model_that_has_diverged_ends_with_the_error(train, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="tfdist"), pytest.raises(NotFinite) as failure:
        train("nan", "train.on_nan=skip", "train.optimizer=sgd", "train.learning_rate=1e38", batch=None)

    assert "after going back to step 0 10 times. The checkpoint of step 0 is kept" in str(failure.value)
    assert "set train.on_nan" not in str(failure.value)
    assert caplog.text.count("going back to step 0") == 10
    assert kept(tmp_path) == [0]


def test_workers_at_their_own_pace_cannot_go_back(tmp_path):
    settings = read_config(CONFIGS / "ps2w.yaml", ["train.on_nan=skip", "data.name=digits"])
    with pytest.raises(
        ConfigError, match=r"skip is not supported with parameter_server: .*Take parameter_server_sync"
    ):
        check_without_training(settings.config, settings.find_cluster(environ={}), tmp_path)
