"""Models as people write them, and data in the order that they are found in."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import compute_in

from tfdist.errors import DataError
from tfdist.loop import evaluate, fit, predict

keras = tf.keras
EXAMPLES, BATCH = 61, 12  # the last of the 6 batches has one example: all replicas but one have no part of it
CATEGORIES = 30


class Subclassed(keras.Model):
    """Two inputs and two outputs by name, with what a real model has in between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(CATEGORIES, 4)
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.normal = keras.layers.BatchNormalization(momentum=0.5, **_synchronized())
        self.mean, self.sign = keras.layers.Dense(1), keras.layers.Dense(1, activation="sigmoid")

    def call(self, inputs: Any, training: bool = False) -> Any:
        words = self.embedding(inputs["word"])
        joined = tf.concat([inputs["number"], tf.reshape(words, (-1, 8))], axis=1)
        hidden = self.normal(self.hidden(joined), training=training)
        return {"mean": self.mean(hidden), "sign": self.sign(hidden)}


def _synchronized() -> dict[str, bool]:
    """Let replicas normalise by the whole batch's moments, as one process does, where Keras has that."""
    return {"synchronized": True} if keras.__version__ >= "3" else {}


def dataset() -> tf.data.Dataset:
    rng = np.random.default_rng(8)
    x = {"number": rng.normal(size=(EXAMPLES, 5)), "word": rng.integers(0, CATEGORIES, size=(EXAMPLES, 2))}
    y = {"mean": np.exp(x["number"][:, :1]), "sign": (x["number"][:, 1:2] > 0).astype("float64")}
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def _compiled() -> Any:
    keras.utils.set_random_seed(4)
    model = Subclassed()
    losses = {"mean": "mse", "sign": "binary_crossentropy"}
    model.compile(keras.optimizers.Adam(0.01), losses, metrics={"mean": ["mae"], "sign": ["accuracy"]})
    return model


def trained(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train, evaluate and predict."""
    compute_in("float64")
    try:
        with strategy.scope():
            model = _compiled()
        history = fit(model, dataset(), strategy=strategy, epochs=2, verbose=0)
        return {
            "is_synchronized": bool(_synchronized()),
            "loss": history.history["loss"],
            "weights": [each.tolist() for each in model.get_weights()],
            "evaluated": evaluate(model, dataset(), strategy=strategy),
            "predicted": {
                name: value.tolist() for name, value in predict(model, dataset(), strategy=strategy).items()
            },
        }
    finally:
        compute_in("float32")


def keras_itself(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Keras's own fit and predict in one process."""
    del strategy, folder
    compute_in("float64")
    model = _compiled()
    history = model.fit(dataset(), epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(dataset(), verbose=0)
    x, y = next(iter(dataset().unbatch().batch(EXAMPLES)))
    error = np.abs(model(x, training=False)["mean"] - y["mean"])
    compute_in("float32")
    return {
        "loss": history.history["loss"],
        "weights": [each.tolist() for each in model.get_weights()],
        "predicted": {name: value.tolist() for name, value in predicted.items()},
        "error": float(error.mean()),
    }


def shuffled(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Count how often each example is seen in data that are shuffled anew in each epoch."""
    names = np.eye(50, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((names, names))
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((50,)), layer])

        class Minus(keras.losses.Loss):
            def call(self, y_true: Any, y_pred: Any) -> Any:
                return -y_pred[:, 0]

        model.compile(keras.optimizers.SGD(1.0), Minus(reduction="sum"))
    tf.random.set_seed(None)
    refused = ""
    try:
        fit(model, data.shuffle(50).batch(6), strategy=strategy, epochs=1, verbose=0)
    except DataError as error:
        refused = str(error)
    before = model.get_weights()[0][:, 0]
    fit(model, data.shuffle(50, seed=5).batch(6), strategy=strategy, epochs=3, verbose=0)
    return {"refused": refused, "seen": (model.get_weights()[0][:, 0] - before).tolist()}


def summed(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Let each replica add one to a variable in each of 4 steps of a loop of the user's own."""
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    def add() -> None:
        total.assign_add(tf.ones([]))

    @tf.function(autograph=False)
    def step() -> None:
        strategy.run(add)

    for _ in range(4):
        step()
    return {"total": float(total.numpy()), "replicas": strategy.num_replicas_in_sync}
