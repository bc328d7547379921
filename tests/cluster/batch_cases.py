"""One batch at a time: what train_on_batch and test_on_batch make of batches of many kinds."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import compute_in

from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict
from tfdist.training.train_and_test_on_batch import evaluate_batch, fit_batch, on_several_replicas

keras = tf.keras


class Halved(keras.Model):
    """A step of the model's own, with the compiled loss halved."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)  # as Keras gives it: y may be followed by None
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True)) / 2
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"half": loss}


def _made(kind: type) -> Any:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1)(keras.layers.Dense(8, "tanh")(inputs))
    model = kind(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.02), "mse", weighted_metrics=["mae"])
    return model


class Added(keras.layers.Layer):
    """Add an optional input."""

    def call(self, x: Any, other: Any = None) -> Any:
        return x if other is None else x + other


def _with_optional_input() -> Any:
    keras.utils.set_random_seed(2)
    x, other = keras.Input((4,), name="x"), keras.Input((4,), name="other", optional=True)
    model = keras.Model({"x": x, "other": other}, keras.layers.Dense(1)(Added()(x, other)))
    model.compile("sgd", "mse")
    return model


def one_at_a_time(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train and test on batches; with a strategy of one replica these are Keras's own methods."""
    train = on_several_replicas(fit_batch, keras.Model.train_on_batch)
    test = on_several_replicas(evaluate_batch, keras.Model.test_on_batch)
    rng = np.random.default_rng(6)

    def batch(size: int) -> tuple[Any, Any]:
        x = rng.normal(size=(size, 4))
        return x, (x[:, :1] > 0).astype("float64")

    compute_in("float64")
    try:
        with strategy.scope():
            model, halved, optional = _made(keras.Model), _made(Halved), _with_optional_input()
        # The second one, of which a replica has nothing, has the step traced again for batches of any size.
        logs = [train(model, *batch(size)) for size in (8, 1, 7, 8)]
        logs.append(train(model, *batch(5), sample_weight=np.arange(5.0)))
        logs.append(train(model, *batch(5), class_weight={0: 0.5, 1: 2.0}))
        logs += [test(model, *batch(size)) for size in (7, 1)]
        x, y = batch(3)
        logs.append(list(test(model, tf.constant(x), tf.constant(y), return_dict=True).values()))
        logs += [train(halved, *batch(3)) for _ in range(2)]
        with strategy.scope():
            model.compile("sgd", "mae")  # from here on another optimizer and another loss
        logs.append(train(model, *batch(6)))
        x, y = batch(5)
        inputs = {"x": x, "other": None}
        logs += [train(optional, inputs, y), test(optional, inputs, y)]
        options: dict[str, Any] = {"batch_size": 5, "strategy": strategy, "verbose": 0}
        logs.append(fit(optional, inputs, y, epochs=2, **options).history["loss"])
        logs += [evaluate(optional, inputs, y, **options), predict(optional, inputs, **options)]
        return {
            "logs": [np.ravel(values).tolist() for values in logs],
            "weights": [weight.tolist() for part in (model, halved) for weight in part.get_weights()],
            "left": [name for name in ("update_step", "assign_add") if name in vars(model.optimizer)],
        }
    finally:
        compute_in("float32")
