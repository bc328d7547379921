"""Orders of the data that each worker draws for itself."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import DataError
from tfdist.training.fit import fit

keras = tf.keras
EXAMPLES = 50


class _Minus(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -y_pred[:, 0]


def drawn(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Count how often each example is seen, or return why the data are refused."""
    names = np.eye(EXAMPLES, dtype="float32")
    if strategy.extended.should_checkpoint:  # one worker may have made more than the others before
        tf.function(lambda: tf.py_function(lambda: 1.0, [], tf.float32))()
    np.random.seed(None if strategy.extended.should_checkpoint else 4)
    return {
        "agreed": _seen(strategy, _permuted(names, np.random.RandomState(7).permutation(EXAMPLES))),
        "own": _seen(strategy, _permuted(names, np.random.permutation(EXAMPLES))),
        "generated": _seen(strategy, _generated(names)),
    }


def drawn_first(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Draw as a script does that seeds nothing: helpers of Keras, and shuffles of NumPy's."""
    import random

    names = np.eye(EXAMPLES, dtype="float32")
    series = keras.utils.timeseries_dataset_from_array(
        names, names, sequence_length=1, shuffle=True, batch_size=6
    )
    return {
        "permuted": _seen(strategy, _permuted(names, np.random.permutation(EXAMPLES))),
        "by_keras": _seen(strategy, series.map(lambda x, y: (x[:, 0], y))),
        "numbers": [random.random(), random.gauss(0, 1), np.random.normal()],
    }


def _permuted(names: np.ndarray, order: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((names[order], names[order])).batch(6)


def _generated(names: np.ndarray) -> tf.data.Dataset:
    spec = tf.TensorSpec((EXAMPLES,), tf.float32)
    return tf.data.Dataset.from_generator(
        lambda: zip(names, names, strict=True), output_signature=(spec, spec)
    ).batch(6)


def _seen(strategy: tf.distribute.Strategy, data: tf.data.Dataset) -> Any:
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((EXAMPLES,)), layer])
        model.compile(keras.optimizers.SGD(1.0), _Minus(reduction="sum"))
    try:
        fit(model, data, strategy=strategy, epochs=2, verbose=0)
    except DataError as error:
        return str(error)
    return model.get_weights()[0][:, 0].tolist()
