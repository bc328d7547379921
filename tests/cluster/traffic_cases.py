"""Count what a step sends: what a model's weights are, by the sockets."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.coordination.cluster_traffic import Traffic
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict

keras = tf.keras
INPUTS, UNITS, STEPS = 100, 1000, 10


def trained(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """One dense layer, large beside all else that is sent, whose weights are kept within a constraint."""
    x, y = np.ones([8, INPUTS], "float32"), np.ones([8, UNITS], "float32")
    # Keras 2 averages the copies of what it has constrained. Here, synchronous ps tasks have weights in shards.
    are_apart = isinstance(
        strategy, (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.ParameterServerStrategy)
    )
    constraint = "max_norm" if are_apart and keras.__version__ >= "3" else None
    with strategy.scope():
        layer = keras.layers.Dense(UNITS, use_bias=False, kernel_constraint=constraint)
        model = keras.Sequential([keras.Input((INPUTS,)), layer])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    fit(model, data, strategy=strategy, epochs=1, steps_per_epoch=2, verbose=0)  # which traces
    with Traffic(strategy) as traffic:
        fit(model, data, strategy=strategy, epochs=1, steps_per_epoch=STEPS, verbose=0)
    return {task: sent / STEPS for task, sent in traffic.bytes_sent.items()}


def evaluated(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """A square layer and an embedding that is as large, one batch in a call of the graph."""
    number, word = keras.Input((UNITS,)), keras.Input((1,), dtype="int32")
    x, words = np.ones([STEPS, UNITS], "float32"), np.zeros([STEPS, 1], "int32")
    with strategy.scope():
        embedded = keras.layers.Flatten()(keras.layers.Embedding(UNITS, UNITS)(word))
        layer = keras.layers.Dense(UNITS, use_bias=False)
        outputs = keras.layers.Dense(1)(layer(keras.layers.Add()([number, embedded])))
        model = keras.Model([number, word], outputs)
        model.compile(keras.optimizers.SGD(0.01), "mse")
    data = tf.data.Dataset.from_tensor_slices(((x, words), x[:, :1])).batch(1)
    first = evaluate(model, data, strategy=strategy, verbose=0, return_dict=True)
    with Traffic(strategy) as traffic:
        again = evaluate(model, data, strategy=strategy, verbose=0, return_dict=True)
    layer.kernel.assign(layer.kernel + 1.0)
    of_others = evaluate(model, data, strategy=strategy, verbose=0, return_dict=True)
    inputs = data.map(lambda x, y: (x,))
    outputs_first = predict(model, inputs, strategy=strategy, verbose=0)
    with Traffic(strategy) as traffic_of_outputs:
        outputs_again = predict(model, inputs, strategy=strategy, verbose=0)
    layer.kernel.assign(layer.kernel + 1.0)
    outputs_of_others = predict(model, inputs, strategy=strategy, verbose=0)
    return {
        "sent": [traffic.bytes_sent, traffic_of_outputs.bytes_sent],
        "losses": [each["loss"] for each in (first, again, of_others)],
        "outputs": [float(each.sum()) for each in (outputs_first, outputs_again, outputs_of_others)],
    }
