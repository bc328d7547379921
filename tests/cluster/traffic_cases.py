"""Count what a step sends: what a model's weights are, by the sockets."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.loop import fit
from tfdist.traffic import Traffic

keras = tf.keras
INPUTS, UNITS, STEPS = 100, 1000, 10


def trained(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """One dense layer, large beside all else that is sent."""
    x, y = np.ones([8, INPUTS], "float32"), np.ones([8, UNITS], "float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((INPUTS,)), keras.layers.Dense(UNITS, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    fit(model, data, strategy=strategy, epochs=1, steps_per_epoch=2, verbose=0)  # which traces
    with Traffic(strategy) as traffic:
        fit(model, data, strategy=strategy, epochs=1, steps_per_epoch=STEPS, verbose=0)
    return {task: sent / STEPS for task, sent in traffic.bytes_sent.items()}
