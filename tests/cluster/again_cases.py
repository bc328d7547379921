"""Calls in a row on one model: what each of them traces, and the numbers that come of it."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import compute_in

from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict
from tfdist.training.train_and_test_on_batch import evaluate_batch, fit_batch

keras = tf.keras
TRACED: list[str] = []


class _Noting(keras.layers.Layer):
    """A layer that notes when Python calls it."""

    def call(self, inputs: Any) -> Any:
        TRACED.append("call")
        return inputs


class Doubled(keras.Model):
    """A training step of the model's own, with twice the compiled loss."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = 2 * self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


KINDS = [keras.Model] if keras.__version__ < "3" else [keras.Model, Doubled]


def _made(kind: type) -> Any:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "tanh", name="hidden")(_Noting()(inputs))
    model = kind(inputs, keras.layers.Dense(2)(hidden))
    _compile(model, keras.optimizers.SGD(0.1, momentum=0.5))
    return model


def _compile(model: Any, optimizer: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=["accuracy"])


class _Kerass:
    """Keras's own methods, and those of tfdist, by the same names."""

    fit, evaluate, predict = keras.Model.fit, keras.Model.evaluate, keras.Model.predict


class _Ours:
    fit, evaluate, predict = staticmethod(fit), staticmethod(evaluate), staticmethod(predict)


def _told(api: Any, strategy: tf.distribute.Strategy, kind: type) -> dict[str, Any]:
    """Return what each call traces, and the weights, losses or outputs after it."""
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(29, 4)), rng.integers(0, 2, 29)
    told: dict[str, Any] = {}
    with strategy.scope():
        model = _made(kind)

    def tell(name: str, call: Any) -> None:
        before = len(TRACED)
        found = call()
        if not isinstance(found, (list, np.ndarray)):
            found = [part.ravel() for part in model.get_weights()]
        told[name] = {
            "traced": len(TRACED) - before,
            "numbers": np.concatenate([*map(np.ravel, found)]).tolist(),
        }

    def trained(name: str, **options: Any) -> None:
        tell(name, lambda: api.fit(model, x, y, batch_size=8, shuffle=False, verbose=0, **options))

    trained("fit", epochs=2)
    tell("evaluate", lambda: api.evaluate(model, x, y, batch_size=8, verbose=0))
    if kind is not keras.Model:  # the rest is not about the step
        trained("fit again")
        trained("fit and evaluate", validation_data=(x, y))
        with strategy.scope():
            _compile(model, keras.optimizers.SGD(0.2))
        trained("frozen")
        trained("frozen again")
        return told
    tell("predict", lambda: api.predict(model, x, batch_size=8, verbose=0))
    trained("fit again")
    trained("fit and evaluate", validation_data=(x, y))
    batches = tf.data.Dataset.from_tensor_slices((x, y, np.ones(29))).batch(8)
    tell("endless", lambda: api.fit(model, batches.repeat(), steps_per_epoch=3, shuffle=False, verbose=0))
    tell("ending", lambda: api.fit(model, batches, shuffle=False, verbose=0))
    trained("weighted", class_weight={0: 0.5, 1: 2.0})
    tell("evaluate again", lambda: api.evaluate(model, x[:13], y[:13], batch_size=7, verbose=0))
    tell("predict again", lambda: api.predict(model, x[:13], batch_size=6, verbose=0))
    trained("weighted again", class_weight={0: 2.0, 1: 0.5})
    model.get_layer("hidden").trainable = False
    trained("frozen without compile")
    with strategy.scope():
        _compile(model, keras.optimizers.SGD(0.2))
    trained("frozen")
    trained("frozen again")
    return told


def repeated(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Repeat calls by tfdist under the strategy, on a model of Keras's step and another."""
    found: dict[str, Any] = {"ours": _repeated(_Ours, strategy)}
    if keras.__version__ >= "3" and type(strategy) is not tf.distribute.OneDeviceStrategy:
        found["batches"] = _on_batches(strategy)
    return found


def repeated_by_keras(strategy: tf.distribute.Strategy, folder: Path) -> list[dict[str, Any]]:
    """Repeat the same calls by Keras, in one process."""
    return _repeated(_Kerass, tf.distribute.get_strategy())


def _repeated(api: Any, strategy: tf.distribute.Strategy) -> list[dict[str, Any]]:
    compute_in("float64")
    try:
        return [_told(api, strategy, kind) for kind in KINDS]
    finally:
        compute_in("float32")


def _on_batches(strategy: tf.distribute.Strategy) -> list[int]:
    """Return how often batches of several sizes have the model traced."""
    with strategy.scope():
        model = _made(keras.Model)
    counts = []
    for call in (fit_batch, evaluate_batch):
        for size in (8, 7, 1, 12):
            before = len(TRACED)
            call(model, np.ones((size, 4)), np.ones((size, 1)))
            counts.append(len(TRACED) - before)
    return counts
