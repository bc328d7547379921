"""What replicas share by rules of its own: optimizers that branch, losses that are divided by other numbers."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import BATCH, EXAMPLES, batches, compute_in, points

from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit

keras = tf.keras
EPOCHS = 2
OVERFLOWS_AT = 40  # in the middle of a batch: one replica's example


class _Steps(keras.callbacks.Callback):
    """Record loss, weights and iterations after each call, by epoch and step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Any] = {}
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = min(batch, -(-EXAMPLES // BATCH) - 1)  # Keras counts a short execution as a whole one
        self.found[f"{self._epoch}.{step}"] = {
            "loss": float(logs["loss"]),
            "weights": np.concatenate([each.ravel() for each in self.model.get_weights()]).tolist(),
            "iterations": int(tf.convert_to_tensor(self.model.optimizer.iterations)),
        }


def _trained(make: Any, data: tf.data.Dataset, strategy: Any, **options: Any) -> dict[str, Any]:
    """Train with tfdist under a strategy, or with Keras's own fit where there is none."""
    compute_in("float64")
    keras.utils.set_random_seed(3)
    steps = _Steps()
    try:
        if strategy is None:
            model = make()
            history = model.fit(data, epochs=EPOCHS, shuffle=False, callbacks=[steps], verbose=0)
            evaluated = model.evaluate(data, verbose=0, return_dict=True)
        else:
            with strategy.scope():
                model = make(**options)
            history = fit(model, data, strategy=strategy, epochs=EPOCHS, callbacks=[steps], verbose=0)
            evaluated = evaluate(model, data, strategy=strategy, verbose=0, return_dict=True)
    finally:
        compute_in("float32")
    variables = [tf.convert_to_tensor(each.value) for each in model.optimizer.variables]
    return {
        "steps": steps.found,
        "history": history.history,
        "evaluated": evaluated,
        "optimizer": np.concatenate([np.ravel(each).astype(float) for each in variables]).tolist(),
    }


def _branching(name: str) -> Any:
    optimizers = keras.optimizers
    schedule = optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    averages = {"use_ema": True, "ema_momentum": 0.5}
    return {
        "accumulating": lambda: optimizers.Adam(
            schedule, gradient_accumulation_steps=4, global_clipnorm=0.5, weight_decay=0.01
        ),
        "overwriting": lambda: optimizers.Adam(0.01, ema_overwrite_frequency=4, **averages),
        "scaling": lambda: optimizers.LossScaleOptimizer(
            optimizers.SGD(0.01, momentum=0.9, clipnorm=0.3), initial_scale=2.0**15, dynamic_growth_steps=3
        ),
        "all": lambda: optimizers.LossScaleOptimizer(
            optimizers.SGD(0.05, gradient_accumulation_steps=2, ema_overwrite_frequency=3, **averages),
            initial_scale=2.0**15,
            dynamic_growth_steps=3,
        ),
        "factor": lambda: optimizers.SGD(0.01, loss_scale_factor=1000.0),
    }[name]()


def _branches(name: str, strategy: Any, **options: Any) -> dict[str, Any]:
    x, y = points("float64")
    if name == "scaling":
        x[OVERFLOWS_AT, 0] = 1e305  # the scaled gradient is no number, the loss is one

    def make(**options: Any) -> Any:
        layers = keras.layers
        penalties = {"kernel_regularizer": "l2", "kernel_constraint": keras.constraints.MaxNorm(1.0)}
        model = keras.Sequential(
            [keras.Input((5,)), layers.Dense(4, "relu", **penalties), layers.Dense(1, name="out")]
        )
        model.compile(_branching(name), "mae", metrics=[] if name == "scaling" else ["mse"], **options)
        return model

    return _trained(make, batches(x, y), strategy, **options)


class Means(keras.layers.Layer):
    """A layer that adds a loss which is a mean over its examples."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.3 * tf.reduce_mean(tf.square(inputs)))
        return inputs


class OwnLoss(keras.Model):
    """A model whose loss is its own, half Keras's and half not."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        return (
            keras.losses.MeanSquaredError()(y, y_pred) + tf.reduce_mean(tf.abs(y - y_pred)) + sum(self.losses)
        )


def _flat(loss: Any, optimizer: Any = None, base: Any = keras.Model, outputs: int = 1, **options: Any) -> Any:
    """Two penalties, on weights and on activities, and a loss that a layer adds."""
    layers = keras.layers
    number = keras.Input((5,))
    both = Means()(layers.Dense(4, "tanh", kernel_regularizer="l2", activity_regularizer="l2")(number))
    found = [layers.Dense(1, name=f"out{each}")(both) for each in range(outputs)]
    model = base(number, found if outputs > 1 else found[0])
    model.compile(optimizer or keras.optimizers.SGD(0.02, momentum=0.9), loss, **options)
    return model


def _sequence(loss: Any, units: int, *, masks: bool, **options: Any) -> Any:
    layers = keras.layers
    word = keras.Input((6,), dtype="int32")
    embedded = layers.Embedding(4, 3, mask_zero=masks, embeddings_regularizer="l2")(word)
    model = keras.Model(word, layers.Dense(units)(embedded))
    metrics = ["mae"] if units == 1 else []
    model.compile(keras.optimizers.SGD(0.05), loss, weighted_metrics=metrics, **options)
    return model


def _with_loss(name: str) -> tuple[Any, tf.data.Dataset]:
    """Return a model's builder, and its data, whose parts differ in size and in what counts in them."""
    losses = keras.losses
    x, y = points("float64")
    rng = np.random.default_rng(5)
    weights = rng.uniform(size=EXAMPLES) * (
        np.arange(EXAMPLES) % BATCH >= BATCH // 2
    )  # none on the first replica
    words = rng.integers(0, 4, size=(EXAMPLES, 6)) * (rng.uniform(size=(EXAMPLES, 1)) > 0.3)
    words[: BATCH // 2] = 0  # all is masked there
    targets = np.cumsum(words, axis=1)[..., None].astype("float64")

    def sums(**options: Any) -> Any:
        each = [losses.MeanSquaredError(reduction="sum") for _ in range(2)]
        return _flat(each, outputs=2, loss_weights=[1.0, 0.3], **options)

    def weighted(**options: Any) -> Any:
        return _flat(losses.MeanSquaredError(reduction="mean_with_sample_weight"), **options)

    def of_examples(**options: Any) -> Any:
        layers, number = keras.layers, keras.Input((5,))
        hidden = layers.Dense(4, "tanh")(number)
        model = keras.Model(number, [layers.Dense(1, name=f"out{each}")(hidden) for each in range(2)])
        each = [losses.MeanSquaredError(reduction=None), losses.MeanAbsoluteError(reduction="none")]
        model.compile(keras.optimizers.SGD(0.002), each, loss_weights=[1.0, 0.3], **options)
        return model

    def ignoring(**options: Any) -> Any:
        loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        return _sequence(loss, 4, masks=False, **options)

    return {
        "sums": (sums, batches(x, (y, -y))),
        "examples": (of_examples, batches(x, (y, -y), (weights, weights[::-1].copy()))),
        "weights": (weighted, batches(x, y, weights)),
        "zeros": (partial(_flat, "mse", weighted_metrics=["mae"]), batches(x, y, weights)),
        "own": (partial(_flat, None, base=OwnLoss), batches(x, y)),
        "masked": (partial(_sequence, "mse", 1, masks=True), batches(words, targets)),
        "ignored": (ignoring, batches(words, words)),
    }[name]


BRANCHES = ("accumulating", "overwriting", "scaling", "factor")
LOSSES = ("weights", "masked", "own", "sums", "examples", "zeros", "ignored")


def _all_at_once(strategy: Any, **options: Any) -> dict[str, Any]:
    """A sum as the loss, penalties that are means, and an optimizer with every branch."""
    x, y = points("float64")
    weights = np.ones(EXAMPLES)
    weights[OVERFLOWS_AT] = 1e305

    def make(**options: Any) -> Any:
        return _flat(keras.losses.MeanAbsoluteError(reduction="sum"), _branching("all"), **options)

    return _trained(make, batches(x, y, weights), strategy, **options)


def at_once(strategy: Any, folder: Path) -> dict[str, Any]:
    if keras.__version__ < "3":
        return {}
    return {"all": _all_at_once(strategy, steps_per_execution=4)}


def each_alone(strategy: Any, folder: Path) -> dict[str, Any]:
    found = {name: _branches(name, strategy, steps_per_execution=4) for name in BRANCHES}
    return found | {name: _trained(*_with_loss(name), strategy) for name in LOSSES}


def at_once_by_keras(strategy: Any, folder: Path) -> dict[str, Any]:
    return {"all": _all_at_once(None)}


def each_alone_by_keras(strategy: Any, folder: Path) -> dict[str, Any]:
    found = {name: _branches(name, None) for name in BRANCHES}
    return found | {name: _trained(*_with_loss(name), None) for name in LOSSES}


def scaled(strategy: Any, folder: Path) -> dict[str, Any]:
    """Scaling in mixed_float16: a weight that counts examples, but for those of a batch that overflows."""
    if keras.__version__ < "3":
        return {}
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with strategy.scope():
            zeros = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            model = keras.Sequential([keras.Input((1,)), zeros])
            optimizer = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(1.0), initial_scale=1024.0, dynamic_growth_steps=1000
            )
            model.compile(optimizer, Minus(reduction="sum"))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    ones = np.ones((EXAMPLES, 1), "float32")
    ones[OVERFLOWS_AT] = 60000.0  # a float16; times the scale it is none
    history = fit(model, batches(ones, ones), strategy=strategy, epochs=1, verbose=0)
    return {
        "weight": float(model.get_weights()[0][0, 0]),
        "scale": float(optimizer.dynamic_scale.numpy()),
        "iterations": int(optimizer.iterations.numpy()),
        "losses": len(history.history["loss"]),
    }


class Minus(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -y_pred[:, 0]
