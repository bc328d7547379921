"""Mirrored workers whose models differ are refused, and those whose models are the same are not."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training.workers import same_model  # noqa: E402

keras = tf.keras


def _model(activation="relu", rate=0.1, optimizer="adam", loss="mse", frozen=False, name=None):
    layers = [keras.layers.Dense(3, activation, name=name), keras.layers.Dropout(rate), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    layers[0].trainable = not frozen
    model.compile(optimizer() if callable(optimizer) else optimizer, loss)
    return model


def _check(monkeypatch, models):
    """Check as if each worker had another one of the models."""
    rows = []
    monkeypatch.setattr(same_model, "has_mirrored_workers", lambda _: True)
    monkeypatch.setattr(same_model, "worker_names", lambda _: [f"worker:{index}" for index in range(3)])
    monkeypatch.setattr(
        same_model, "gathered_in_call", lambda _, row: rows.append(row) or np.stack(rows).astype("float32")
    )
    for model in models:
        same_model.check_same_model(model, None)


def test_the_same_model_under_other_names_after_a_call_on_one_worker_passes(monkeypatch):
    other = _model(name="another")
    other.stop_training = True
    _check(monkeypatch, [_model(), _model(), other])


def test_the_same_vocabulary_passes_and_another_does_not(monkeypatch):
    def made(*words):
        text = keras.layers.StringLookup()
        text.adapt(np.array(words))
        model = keras.Sequential([keras.Input((1,), dtype="string"), text])
        model.compile(loss="mse")
        return model

    _check(monkeypatch, [made("a", "b"), made("a", "b")])
    with pytest.raises(ConfigError, match="in its layers"):
        _check(monkeypatch, [made("a", "b"), made("a", "b"), made("a", "b", "c")])


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"activation": "tanh"}, "layers"),
        ({"rate": 0.5}, "layers"),
        ({"frozen": True}, "layers"),
        ({"optimizer": lambda: keras.optimizers.Adam(beta_1=0.5)}, "optimizer"),
        (
            {"optimizer": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9))},
            "optimizer",
        ),
        ({"loss": "mae"}, "loss"),
        ({"loss": lambda y, outputs: keras.losses.huber(y, outputs)}, "loss"),
    ],
    ids=["activation", "rate", "frozen", "beta", "schedule", "loss", "lambda"],
)
def test_a_model_that_differs_is_refused_and_says_in_what(monkeypatch, changed, what):
    line = f"the model: differs between worker:0 and worker:2, in its {what}. Make the same"
    with pytest.raises(ConfigError, match=line):
        _check(monkeypatch, [_model(), _model(), _model(**changed)])


def test_a_variable_of_another_shape_is_named():
    text = "Collective ops is aborted by: Shape mismatch in the collective instance 102."
    line = "the variable kernel: has another shape or type"
    with pytest.raises(ConfigError, match=line), same_model.naming_other_variables("kernel"):
        raise tf.errors.InvalidArgumentError(None, None, text)
    with pytest.raises(tf.errors.InvalidArgumentError), same_model.naming_other_variables("kernel"):
        raise tf.errors.InvalidArgumentError(None, None, "of another kind")
