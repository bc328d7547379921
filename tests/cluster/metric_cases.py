"""Metrics as people write them: sums, other state, and results that are no single numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit

keras = tf.keras
EXAMPLES, BATCH = 33, 8  # the last batch has one example: all replicas but one have no part of it


class Total(keras.metrics.Metric):
    """Its result is its variable."""

    def __init__(self, name: str = "total", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(self.total + tf.reduce_sum(y_true))

    def result(self) -> Any:
        return self.total


class Confusion(keras.metrics.Metric):
    """Its result is a matrix."""

    def __init__(self, name: str = "confusion", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.counts = self.add_weight(name="counts", shape=(2, 2), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        signs = [tf.cast(each[:, 0] > 0, "int32") for each in (y_true, y_true - 1.0)]
        self.counts.assign_add(tf.cast(tf.math.confusion_matrix(*signs, num_classes=2), self.counts.dtype))

    def result(self) -> Any:
        return self.counts


class Largest(keras.metrics.Metric):
    """Its state is no sum, does not start from zero, and its results have names."""

    def __init__(self, name: str = "largest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.largest = self.add_weight(name="largest", shape=(), initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", dtype="int32")

    def reset_state(self) -> None:
        self.largest.assign(-np.inf)
        self.count.assign(7)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), tf.reduce_max(y_true)))
        self.count.assign_add(tf.shape(y_true)[0])

    def result(self) -> Any:
        return {"largest": self.largest, "count": self.count}


class MergedLargest(Largest):
    """Replicas can put its state together."""

    def merge_state(self, metrics: Any) -> None:
        for each in metrics:
            self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), each.largest))


def average(y_true: Any, y_pred: Any) -> Any:
    """Return one number for a batch."""
    return tf.reduce_mean(y_true)


def data() -> tf.data.Dataset:
    y = values()
    return tf.data.Dataset.from_tensor_slices((np.hstack([y, -y]), y)).batch(BATCH)


def values() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(EXAMPLES, 1)).astype("float32")


def counted(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train and evaluate with metrics of several kinds."""
    if keras.__version__ < "3":
        return {}
    with strategy.scope():
        models = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]) for _ in range(2)]
        metrics = [Total(), Confusion(), MergedLargest(), keras.metrics.F1Score(threshold=0.5), average]
        models[0].compile("sgd", "mse", metrics=metrics)
        models[1].compile("sgd", "mse", metrics=[Largest()])
    history = fit(models[0], data(), strategy=strategy, epochs=2, verbose=0).history
    found = {name: np.asarray(value).tolist() for name, value in history.items()}
    try:
        alone = fit(models[1], data(), strategy=strategy, verbose=0).history["largest"]
        refused = ""
    except ConfigError as error:
        alone, refused = [], str(error)
    evaluated = evaluate(models[0], data(), strategy=strategy, verbose=0, return_dict=True)
    with strategy.scope():
        stored = float(tf.convert_to_tensor(metrics[0].total.value))
    return {
        "history": found,
        "evaluated": {name: np.asarray(value).tolist() for name, value in evaluated.items()},
        "stored": stored,
        "alone": alone,
        "refused": refused,
    }
