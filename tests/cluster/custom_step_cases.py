"""Models that override train_step, written for one process as tutorials write them."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from cases import batches, compute_in, points

from tfdist.errors import ConfigError
from tfdist.training.fit import fit

keras = tf.keras


class Compiled(keras.Model):
    """The compiled loss and metrics, in Keras's own step and a count beside them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen = keras.metrics.Sum(name="seen")

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step(data)
        self.seen.update_state(tf.ones_like(data[1]))
        return {**logs, "seen": self.seen.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return {"error": tf.reduce_mean(tf.square(self(x, training=False) - y))}


class Gan(keras.Model):
    """Two networks with an optimizer each, means as metrics, and a value in the logs that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
        )
        dense = keras.layers.SpectralNormalization(keras.layers.Dense(1))  # which writes its weights
        self.maker = keras.Sequential([keras.Input((5,)), dense])
        self.doubt, self.fooled = (keras.metrics.Mean(name=name) for name in ("doubt", "fooled"))
        self.built = True

    def compile(self, *optimizers: Any) -> None:
        super().compile()
        self.of_critic, self.of_maker = optimizers

    @property
    def metrics(self) -> list[Any]:
        return [self.doubt, self.fooled]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        size = tf.shape(x)[0]
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            scores = self.critic(tf.concat([self.maker(x), y], axis=0))
            doubt = keras.losses.BinaryCrossentropy(from_logits=True)(labels, scores)
        weights = self.critic.trainable_weights
        self.of_critic.apply_gradients(zip(tape.gradient(doubt, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            replicas = tf.distribute.get_strategy().num_replicas_in_sync  # as TensorFlow's guides have it
            fooled = tf.reduce_mean(tf.nn.softplus(self.critic(self.maker(x)))) / replicas
        weights = self.maker.trainable_weights
        self.of_maker.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        self.doubt.update_state(doubt)
        self.fooled.update_state(fooled)
        return {"doubt": self.doubt.result(), "fooled": self.fooled.result(), "last": fooled}


class Towers(keras.Model):
    """Two towers whose loss is a sum over the batch and a penalty, and layers that the first batch builds."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = keras.layers.Dense(3, kernel_regularizer="l2"), keras.layers.Dense(3)
        self.mean = keras.metrics.Mean(name="mean")
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")
        self.built = True

    @tf.function
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            scores = tf.reduce_sum(self.left(x) * self.right(y), axis=1, keepdims=True)
            loss = keras.losses.MeanSquaredError(reduction="sum")(y, scores) + tf.add_n(self.losses)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.mean.update_state(loss)
        self.steps.assign_add(1.0)
        return {"mean": self.mean.result(), "sum": loss}


class Clipped(keras.Model):
    """A model that trains by a sum over the batch and a masked mean, on gradients that its step clips."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(self(x, training=True) - y), axis=-1)
            mask = tf.cast(y[:, 0] > 0, errors.dtype)
            masked = tf.reduce_sum(errors * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)
            loss = masked + 0.1 * tf.reduce_sum(errors)
        weights = self.trainable_variables
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"norm": norm, "masked": masked}


def _clipped() -> Any:
    inputs = keras.Input((5,))
    x = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(4, "tanh")(inputs))
    model = Clipped(inputs, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.05))
    return model


def _compiled(**options: Any) -> Any:
    inputs = keras.Input((5,))
    x = keras.layers.Dense(4, "tanh", kernel_regularizer="l2")(inputs)
    x = keras.layers.BatchNormalization(synchronized=True)(x)
    model = Compiled(inputs, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.05, global_clipnorm=1.0, **options), "mse", metrics=["mae"])
    return model


def _gan() -> Any:
    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, clipnorm=0.1))
    return model


def _towers() -> Any:
    model = Towers()
    model.compile(keras.optimizers.Adagrad(0.02))
    return model


MODELS = {
    "compiled": _compiled,
    "gan": _gan,
    "towers": _towers,
    "clipped": _clipped,
    "accumulated": lambda: _compiled(gradient_accumulation_steps=3),
}


def _result(model: Any, history: Any) -> dict[str, Any]:
    optimizers = [getattr(model, name, None) for name in ("of_critic", "of_maker")]
    used = [optimizer for optimizer in optimizers if optimizer is not None] or [model.optimizer]
    counts = [int(keras.ops.convert_to_numpy(optimizer.iterations)) for optimizer in used]
    weights = {variable.path: variable.numpy().tolist() for variable in model.variables}
    weights = {path: value for path, value in weights.items() if "seed" not in path}
    return {"history": history.history, "weights": list(weights.values()), "iterations": counts}


def trained(strategy: Any, folder: Path) -> dict[str, Any]:
    """Train by tfdist; where a model is refused, keep why."""
    found: dict[str, Any] = {}
    compute_in("float64")
    data = batches(*points("float64"))
    for name, make in MODELS.items():
        keras.utils.set_random_seed(4)
        with strategy.scope():
            model = make()
        validation = data if name == "compiled" else None
        try:
            history = fit(model, data, strategy=strategy, epochs=2, validation_data=validation, verbose=0)
        except ConfigError as error:
            found[name] = str(error)
        else:
            found[name] = _result(model, history)
    compute_in("float32")
    return found


def trained_by_keras(strategy: Any, folder: Path) -> dict[str, Any]:
    """Train by Keras's own fit, in one process."""
    found = {}
    compute_in("float64")
    data = batches(*points("float64"))
    for name, make in MODELS.items():
        keras.utils.set_random_seed(4)
        with strategy.scope():
            model = make()
            if name == "towers":  # Keras itself builds no layers of a model without a call
                model.left.build((None, 5))
                model.right.build((None, 1))
        validation = {"validation_data": data} if name == "compiled" else {}
        history = model.fit(data, epochs=2, shuffle=False, verbose=0, **validation)
        found[name] = _result(model, history)
    return found


def refused(strategy: Any, folder: Path) -> dict[str, Any]:
    """Train a model whose step several replicas or workers cannot share."""
    outside = keras.metrics.Mean(name="outside")

    class Outside(Compiled):
        def train_step(self, data: Any) -> dict[str, Any]:
            logs = super().train_step(data)
            outside.update_state(data[1])
            return logs

    class Branching(Compiled):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)

            def updated() -> Any:
                self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
                return loss

            return {"loss": tf.cond(loss > 0.0, updated, lambda: loss)}

    found = {}
    for kind in (Outside, Branching):
        with strategy.scope():
            inputs = keras.Input((5,))
            model = kind(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", "mse")
        try:
            fit(model, batches(*points()), strategy=strategy, verbose=0)
        except ConfigError as error:
            found[kind.__name__] = str(error)
    return found
