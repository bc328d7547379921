"""Orders of the data that each worker draws for itself."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import DataError
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict
from tfdist.training.start import watch_variables_and_data

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
        "of_python": _seen_of_python(strategy, names),
        "own_of_python": {
            "fit": _seen(strategy, _yielded(_own(strategy, names))),
            "later": _seen(strategy, _yielded(_own(strategy, names, 44))),
            "data set": _seen(strategy, _generated(_own(strategy, names))),
            "evaluate": _refused(evaluate, strategy, _yielded(_own(strategy, names))),
            "predict": _refused(predict, strategy, _yielded(_own(strategy, names))),
        },
        "of_own_python": _seen(strategy, _Named(_own(strategy, names))),
        "split": [_split(strategy, names, seed) for seed in (None, 1)],
    }


def _own(strategy: Any, names: np.ndarray, begin: int = 0) -> np.ndarray:
    """Return the examples, on the chief in another order from one of them on."""
    return np.concatenate(
        [names[:begin], np.roll(names[begin:], int(strategy.extended.should_checkpoint), 0)]
    )


def _yielded(names: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, EXAMPLES, 4):
        yield names[begin : begin + 4], names[begin : begin + 4]


def _refused(call: Any, strategy: tf.distribute.Strategy, data: Any) -> str:
    """Return why a call refuses data."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((EXAMPLES,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    try:
        call(model, data, strategy=strategy, verbose=0)
    except DataError as error:
        return str(error)
    return ""


def _split(strategy: Any, names: np.ndarray, seed: int | None) -> str:
    """Distribute shuffled data as a loop of the user's does after tfdist.start(); return why they are refused."""
    watch_variables_and_data(strategy)
    tf.random.set_seed(None)  # other cases may have set it
    try:
        strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices(names).shuffle(EXAMPLES, seed).batch(6)
        )
    except DataError as error:
        return str(error)
    finally:
        strategy.while_making = strategy.check_split = None
    return ""


class _Named(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    """Batches of examples, which Keras shuffles by Python's generator."""

    def __init__(self, names: np.ndarray) -> None:
        super().__init__()
        self.names = names

    def __len__(self) -> int:
        return -(-EXAMPLES // 6)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        names = self.names[6 * index : 6 * index + 6]
        return names, names


def _seen_of_python(strategy: tf.distribute.Strategy, names: np.ndarray) -> Any:
    """Train on a shuffled PyDataset, while the chief draws numbers that others do not draw."""

    def draw(*_: Any) -> None:
        if strategy.extended.should_checkpoint:
            random.random()

    draw()
    return _seen(strategy, _Named(names), callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=draw)])


def drawn_first(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Draw as a script does that seeds nothing: helpers of Keras, and shuffles of NumPy's."""
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


def _seen(strategy: tf.distribute.Strategy, data: Any, **options: Any) -> Any:
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((EXAMPLES,)), layer])
        model.compile(keras.optimizers.SGD(1.0), _Minus(reduction="sum"))
    try:
        fit(model, data, strategy=strategy, epochs=2, verbose=0, **options)
    except DataError as error:
        return str(error)
    return model.get_weights()[0][:, 0].tolist()
