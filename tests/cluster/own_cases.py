"""Models that train and test in a way of their own, by tfdist and by Keras's own fit under the same strategy."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from cases import batches, points

from tfdist.errors import ConfigError
from tfdist.training.fit import fit

keras = tf.keras


class Own(keras.Model):
    """What Keras's guides show: the compiled loss and metrics, in a step written out."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if keras.__version__ >= "3" and metric.name == "loss":
                metric.update_state(loss)
            elif metric.name != "loss":
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return {"error": tf.reduce_mean(tf.square(self(x, training=False) - y)), "largest": tf.reduce_max(y)}


class Two(keras.Model):
    """Two networks with an optimizer each, as a GAN has, and logs that are no metrics."""

    def __init__(self) -> None:
        super().__init__()
        first = keras.Input((1,)) if keras.__version__ >= "3" else keras.layers.InputLayer((1,))
        self.critic = keras.Sequential([first, keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
        first = keras.Input((5,)) if keras.__version__ >= "3" else keras.layers.InputLayer((5,))
        self.maker = keras.Sequential([first, keras.layers.Dense(1)])
        self.critics = keras.optimizers.Adam(0.01)
        self.makers = keras.optimizers.SGD(0.01)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.maker(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape(persistent=True) as tape:
            made = self.critic(self.maker(x))
            doubt = tf.reduce_mean(tf.nn.softplus(made) + tf.nn.softplus(-self.critic(y))) / replicas
            fooled = tf.reduce_mean(tf.nn.softplus(-made)) / replicas
        for loss, part, optimizer in ((doubt, self.critic, self.critics), (fooled, self.maker, self.makers)):
            gradients = tape.gradient(loss, part.trainable_variables)
            optimizer.apply_gradients(zip(gradients, part.trainable_variables))  # noqa: B905
        return {"doubt": doubt, "fooled": fooled}


def _made(name: str, **options: Any) -> Any:
    keras.utils.set_random_seed(4)
    if name == "two":
        model = Two()
        model.compile(**options)
        return model
    inputs = keras.Input((5,))
    outputs = keras.layers.Dense(1)(keras.layers.BatchNormalization()(inputs))
    model = Own(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], **options)
    return model


def _described(model: Any, history: Any) -> dict[str, Any]:
    return {"history": history.history, "weights": [each.tolist() for each in model.get_weights()]}


def steps(strategy: Any, folder: Path) -> dict[str, Any]:
    found = {}
    data = batches(*points())
    for name in ("own", "two"):
        validation = data if name == "own" else None
        with strategy.scope():
            model = _made(name, steps_per_execution=4)
        found[name] = _described(
            model, fit(model, data, strategy=strategy, epochs=2, validation_data=validation, verbose=0)
        )
    return found


def steps_by_keras(strategy: Any, folder: Path) -> dict[str, Any]:
    found = {}
    data = batches(*points())
    for name in ("own", "two"):
        with strategy.scope():
            model = _made(name)
        validation = {"validation_data": data} if name == "own" else {}
        found[name] = _described(model, model.fit(data, epochs=2, shuffle=False, verbose=0, **validation))
    return found


def refused(strategy: Any, folder: Path) -> dict[str, Any]:
    """What cannot be right here is refused, and by name."""
    if keras.__version__ >= "3" and strategy.num_replicas_in_sync > 1:
        return {}  # workers in step train all of it: see shared_cases and custom_step_cases
    found = {}
    with strategy.scope():
        model = _made("own")
    found["own"] = _problem(model, strategy)
    if keras.__version__ >= "3":
        for name, more in (
            ("accumulation", {"gradient_accumulation_steps": 2}),
            ("overwriting", _OVERWRITES),
        ):
            with strategy.scope():
                model = _plain(keras.optimizers.SGD(0.1, **more))
            found[name] = _problem(model, strategy)
    return found


_OVERWRITES = {"use_ema": True, "ema_overwrite_frequency": 2}


def _plain(optimizer: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


def _problem(model: Any, strategy: Any) -> str:
    try:
        fit(model, batches(*points()), strategy=strategy, verbose=0)
    except ConfigError as error:
        return str(error)
    return ""


def compiled(strategy: Any, folder: Path) -> dict[str, Any]:
    """The same model, compiled by XLA and not."""
    if keras.__version__ < "3":
        return {}
    found = {}
    for name, options in (("jit", {"jit_compile": True}), ("plain", {})):
        with strategy.scope():
            model = _plain(keras.optimizers.SGD(0.01), **options)
        history = fit(model, batches(*points()), strategy=strategy, verbose=0)
        found[name] = history.history["loss"]
    return found
