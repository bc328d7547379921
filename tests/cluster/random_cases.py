"""What replicas draw: a model whose weights become the numbers that were drawn for each example."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training.fit import fit

keras = tf.keras
EXAMPLES, BATCH, SIDE = 24, 4, 8


def draws(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train the same model twice from the same seed, where the second run can be the same."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return {"first": _drawn(strategy)}
    return {"first": _drawn(strategy), "again": _drawn(strategy)}


class Noise(keras.layers.Layer):
    """A layer of a user's own, which leaves the seed to Keras."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        uniform = keras.random.uniform if hasattr(keras, "random") else tf.random.uniform
        return inputs * uniform(tf.shape(inputs))


class _Minus(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -tf.reduce_sum(y_pred, axis=-1)


LAYERS = {
    "dropout": lambda: keras.layers.Dropout(0.5),
    "translation": lambda: keras.layers.RandomTranslation(0.5, 0.5, fill_mode="wrap"),
    "noise": Noise,
}


def _drawn(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Return what each layer drew for each example: the gradient of the example's own row of weights."""
    keras.utils.set_random_seed(7)
    picture = np.random.default_rng(3).normal(size=(SIDE, SIDE, 1)).astype("float32")
    with strategy.scope():
        name = keras.Input((EXAMPLES,), name="name")
        pictures = keras.Input((SIDE, SIDE, 1), name="picture")
        outputs = []
        for layer, make in LAYERS.items():
            rows = keras.layers.Dense(
                SIDE * SIDE, use_bias=False, kernel_initializer="zeros", name=f"{layer}_rows"
            )
            changed = keras.layers.Flatten()(make()(pictures))
            outputs.append(keras.layers.Multiply()([changed, rows(name)]))
        model = keras.Model([name, pictures], keras.layers.Concatenate()(outputs))
        model.compile(keras.optimizers.SGD(1.0), _Minus(reduction="sum"))
    names = np.eye(EXAMPLES, dtype="float32")
    inputs = (names, np.tile(picture, (EXAMPLES, 1, 1, 1)))
    data = tf.data.Dataset.from_tensor_slices((inputs, names)).batch(BATCH)
    fit(model, data, strategy=strategy, epochs=1, verbose=0)
    return {each: model.get_layer(f"{each}_rows").get_weights()[0].round(4).tolist() for each in LAYERS}
