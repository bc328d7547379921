"""Data that only one process can read: Python code, and arrays that are too large to send in a graph."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from tfdist.training.data import inspect_dataset
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.keras import datasets_from_inputs
from tfdist.training.predict import predict

keras = tf.keras
EXAMPLES, BATCH = 101, 12
x = np.arange(EXAMPLES, dtype="float32")[:, None]
y = x**2 / 100


class Parts(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):  # type: ignore[misc]
    """Batches that Python makes, of which the last one is short."""

    def __len__(self) -> int:
        return -(-EXAMPLES // BATCH)

    def __getitem__(self, index: int) -> Any:
        part = slice(index * BATCH, (index + 1) * BATCH)
        return x[part], y[part]


def _yielded() -> Iterator[Any]:
    yield from (Parts()[index] for index in range(len(Parts())))


def _of_python() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(_yielded, output_signature=(tf.TensorSpec((None, 1)),) * 2)


def read_once(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Return the mean target of each epoch, as the loss of a model that does not change."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(
            keras.optimizers.SGD(0.0), lambda true, predicted: true + 0 * predicted, steps_per_execution=3
        )
    losses = {
        "generator": fit(model, _yielded(), verbose=0, strategy=strategy),
        "PyDataset": fit(model, Parts(), epochs=2, shuffle=False, verbose=0, strategy=strategy),
        "from_generator": fit(model, _of_python(), epochs=2, verbose=0, strategy=strategy),
    }
    with (
        mock.patch.object(inspect_dataset, "MOST_BYTES", 100),
        mock.patch.object(datasets_from_inputs, "MOST_BYTES", 100),
    ):
        losses["arrays"] = fit(model, x, y, batch_size=BATCH, epochs=2, verbose=0, strategy=strategy)
    return {
        "losses": {name: history.history["loss"] for name, history in losses.items()},
        "evaluated": float(evaluate(model, Parts(), verbose=0, strategy=strategy)),
        "predicted": predict(model, Parts(), verbose=0, strategy=strategy).tolist(),
        "predicted_of_python": predict(model, _of_python(), verbose=0, strategy=strategy).tolist(),
    }
