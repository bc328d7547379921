"""The proof of equivalence, by the command that a user types."""

import os
from pathlib import Path

import pytest

from commands import tfdist, tfdist_forked

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def environ(tmp_path_factory, cache, forking):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_model.py").write_text(
        "import tensorflow as tf\n"
        "def build(image_shape, classes, *, units, normalize=False):\n"
        "    layers = tf.keras.layers\n"
        "    body = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(units, 'tanh')]\n"
        "    body += [layers.BatchNormalization()] if normalize else [layers.Dropout(0.5)]\n"
        "    return tf.keras.Sequential([tf.keras.Input(image_shape), *body, layers.Dense(classes)])\n"
    )
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {"PYTHONPATH": path, "TFDIST_CACHE_DIR": cache}


def verify(environ, name, *arguments):
    run = tfdist_forked if name == "mirrored" else tfdist  # all in one process
    options = ["--config", CONFIGS / f"{name}.yaml", "--set=data.name=digits", *arguments]
    return run("verify", *options, **environ)


OWN = ["--set=model.name=own_model:build", "--set=model.options={units: 32}"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("mirrored", ["--set=strategy.logical_devices=3", "--set=data.batch_size=96", "--numbers=float32", *OWN], marks=[pytest.mark.slow, pytest.mark.again]),
        pytest.param("mwms2w", ["--steps=4"], marks=pytest.mark.slow),
        pytest.param("ps2w-sync", ["--steps=4"], marks=[pytest.mark.slow, pytest.mark.again]),
    ],
)  # fmt: skip
def test_a_cluster_computes_what_one_process_computes(environ, name, arguments):
    run = verify(environ, name, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "computes what one process computes" in run.stdout
    assert "tfdist: one process trains\n" in run.stderr
    assert "oneDNN custom operations" not in run.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ps2w", [], "strategy.name: updates asynchronously: no two runs of it are equal. Verify with parameter_server_sync"),
        ("mwms2w", ["--set=cluster.worker=[a:1, b:1]"], "gives addresses; verify starts its cluster on this machine"),
        ("mirrored", ["--set=model.name=own_model:build", "--set=model.options={units: 8, normalize: true}"], "normalises each replica's own part"),
    ],
)  # fmt: skip
def test_what_cannot_be_verified_is_said(environ, name, arguments, message):
    run = verify(environ, name, *arguments)
    assert run.returncode == 2, run.stdout + run.stderr
    assert message in run.stderr


def test_a_cluster_that_computes_something_else_is_found_out(environ, tmp_path):
    """A learning rate that grows with the number of replicas is the classic silent mistake."""
    (tmp_path / "scaled_model.py").write_text(
        "import tensorflow as tf\n"
        "def build(image_shape, classes):\n"
        "    scale = float(tf.distribute.get_strategy().num_replicas_in_sync)\n"
        "    layers = [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(classes)]\n"
        "    layers += [tf.keras.layers.Rescaling(scale)]\n"
        "    return tf.keras.Sequential([tf.keras.Input(image_shape), *layers])\n"
    )
    wrong = {**environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{environ['PYTHONPATH']}"}
    run = verify(wrong, "mirrored", "--set=model.name=scaled_model:build")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "mirrored differs from one process from step 1 on" in run.stdout
