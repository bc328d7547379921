"""A model that a config describes: what it is compiled with, and what it returns."""

import math

import pytest
import tensorflow as tf

from tfdist.datasets.open_data import open_data
from tfdist.errors import ConfigError
from tfdist.launcher import record_events
from tfdist.trainer.batches_of_config import note_of_large_batch, open_run_data
from tfdist.trainer.config import read_config
from tfdist.trainer.model_of_config import compiled_model, find_outputs


@pytest.fixture
def compiled(tmp_path, cache):
    def make(text):
        (tmp_path / "x.yaml").write_text(f"train: {{{text}}}")
        config = read_config(tmp_path / "x.yaml").config
        return compiled_model(config, open_data("digits", cache_dir=cache), "logits")

    return make


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps: 8", [0.1] * 8),
        ("steps: 8, warmup: 0.4", [0.025, 0.05, 0.075, *[0.1] * 5]),
        ("steps: 8, schedule: cosine", [0.05 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]),
        (
            "steps: 7, warmup: 0.4, schedule: cosine",
            [0.025, 0.05, 0.075, *(0.05 * (1 + math.cos(math.pi * step / 4)) for step in range(4))],
        ),
    ],
)
def test_the_learning_rate_rises_and_falls(compiled, text, expected):
    # Keras 2 computes the public one when it has taken a step.
    rate = compiled(f"{text}, learning_rate: 0.1, optimizer: sgd").optimizer._learning_rate
    found = [rate(step) if callable(rate) else rate for step in range(len(expected))]
    assert [float(tf.convert_to_tensor(each)) for each in found] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "momentum", "nesterov"), [("sgd", 0, False), ("momentum", 0.9, False), ("nesterov", 0.9, True)]
)
def test_the_optimizers_are_those_of_their_names(compiled, name, momentum, nesterov):
    optimizer = compiled(f"steps: 8, optimizer: {name}").optimizer
    assert (optimizer.momentum, optimizer.nesterov) == (momentum, nesterov)


@pytest.mark.parametrize(
    ("loss", "compiled_loss", "expected"),
    [
        ("{name: binary_crossentropy, from_logits: false}", "", "probabilities"),
        ("{name: binary_crossentropy, from_logits: true}", "", "logits"),
        ("mse", "", "probabilities"),
        ("null", "binary_crossentropy", "probabilities"),
        ("null", "mse", "probabilities"),
        ("binary_crossentropy", "", "unknown"),
        ("null", "", "unknown"),
    ],
)
def test_the_loss_decides_what_outputs_of_a_sigmoid_are(tmp_path, cache, loss, compiled_loss, expected):
    model = f"{{name: 'own_objects:build_with_sigmoid', options: {{loss: '{compiled_loss}'}}}}"
    (tmp_path / "x.yaml").write_text(f"model: {model}\ntrain: {{loss: {loss}}}")
    config = read_config(tmp_path / "x.yaml").config
    assert find_outputs(config, open_data("digits", cache_dir=cache)) == expected


def test_a_test_step_without_an_accuracy_is_found_before_the_training(tmp_path, cache):
    (tmp_path / "x.yaml").write_text("model: {name: 'own_objects:build_with_other_results'}")
    config = read_config(tmp_path / "x.yaml").config
    with pytest.raises(
        ConfigError, match=r"expected loss and accuracy from an evaluation, received (loss, acc|acc, loss)\."
    ):
        find_outputs(config, open_data("digits", cache_dir=cache))
    (tmp_path / "x.yaml").write_text("model: {name: 'own_objects:build_with_own_steps'}")
    config = read_config(tmp_path / "x.yaml").config
    assert find_outputs(config, open_data("digits", cache_dir=cache)) == "logits"


@pytest.mark.parametrize("name", ["resnet", "own_objects:build", "cifar10_cnn"])
def test_a_model_that_does_not_take_augmented_images_is_refused(tmp_path, cache, name):
    text = f"model: {{name: '{name}'}}\ndata: {{augment: cifar10_2016}}"
    (tmp_path / "x.yaml").write_text(text)
    config, data = read_config(tmp_path / "x.yaml").config, open_data("digits", cache_dir=cache)
    if name == "cifar10_cnn":
        assert find_outputs(config, data) == "logits"
        return
    problem = f"data.augment: cifar10_2016 makes images of 24 x 24 x 1, which model {name} does not take"
    with pytest.raises(ConfigError, match=problem):
        find_outputs(config, data)


@pytest.mark.parametrize("more", [0, 1])
def test_a_batch_that_is_larger_than_the_data_is_noted(tmp_path, cache, more):
    data = open_data("digits", cache_dir=cache)
    size = data.train_examples + more
    (tmp_path / "x.yaml").write_text(f"data: {{batch_size: {size}}}")
    note = note_of_large_batch(read_config(tmp_path / "x.yaml").config, data)
    expected = f"data.batch_size {size} exceeds the {size - 1} training images: a step repeats some"
    assert note == (expected if more else "")


@pytest.mark.parametrize(("environ", "warnings"), [({}, 1), ({record_events.VARIABLE: "events.jsonl"}, 0)])
def test_a_task_does_not_repeat_the_launchers_warning(
    tmp_path, monkeypatch, caplog, cache, environ, warnings
):
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(cache))
    monkeypatch.setattr("tfdist.datasets.from_tfds.why_unreachable", lambda host: f"{host}: no route")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "x.yaml").write_text(f"data: {{name: mnist, dir: {tmp_path}, if_unavailable: digits}}")
    assert open_run_data(read_config(tmp_path / "x.yaml").config).substitute_for == "mnist"
    assert sum(record.levelname == "WARNING" for record in caplog.records) == warnings
