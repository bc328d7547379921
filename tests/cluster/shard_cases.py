"""Large variables in shards: what training makes of them, where they are, and what of them is read and saved."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import batches, compute_in

from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.parameter_servers.sharded_keras_variables import variables_read_in_place
from tfdist.training.predict import predict

keras = tf.keras
WORDS, EXAMPLES = 211, 101


def data() -> tf.data.Dataset:
    rng = np.random.default_rng(5)
    x, words = rng.normal(size=(EXAMPLES, 40)), rng.integers(0, WORDS, size=(EXAMPLES, 3)).astype("int32")
    return batches((x, words), np.exp(x[:, :1]))


def large_model() -> Any:
    """A large kernel with a penalty, and a large embedding."""
    number, word = keras.Input((40,), name="number"), keras.Input((3,), dtype="int32", name="word")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(WORDS, 8, name="words")(word))
    dense = keras.layers.Dense(31, "tanh", kernel_regularizer="l2", name="large")(number)
    return keras.Model([number, word], keras.layers.Dense(1)(keras.layers.Concatenate()([dense, embedded])))


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.02, momentum=0.9, weight_decay=0.01),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5, use_ema=True, ema_momentum=0.5),
}


def trained(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train with each optimizer."""
    return {name: _trained(strategy, name, folder) for name in OPTIMIZERS}


def _trained(strategy: tf.distribute.Strategy, optimizer: str, folder: Path) -> dict[str, Any]:
    compute_in("float64")
    try:
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = large_model()
            model.compile(OPTIMIZERS[optimizer](), "mse")
        history = fit(model, data(), strategy=strategy, epochs=2, verbose=0)
        found = {
            "losses": history.history["loss"],
            "weights": [each.tolist() for each in model.get_weights()],
        }
        if optimizer != "adam":
            return found
        return {
            **found,
            "evaluated": evaluate(model, data(), strategy=strategy, verbose=0, return_dict=True),
            "predicted": predict(model, data(), strategy=strategy).tolist(),
            "devices": {
                "words": _devices(model.get_layer("words").embeddings),
                "kernel": _devices(model.get_layer("large").kernel),
            },
            "whole_reads": _whole_reads(model, model.get_layer("words")),
            "saved": _saved(strategy, model, folder / optimizer) if keras.__version__ >= "3" else {},
        }
    finally:
        compute_in("float32")


def _devices(variable: Any) -> list[str]:
    value = variable if isinstance(variable, tf.__internal__.distribute.ShardedVariable) else variable.value
    return [each.device for each in getattr(value, "variables", [])]


def _whole_reads(model: Any, embedding: Any) -> list[str]:
    """Return the names of the operations that read all rows of a shard for something that is computed."""
    with variables_read_in_place(model):  # as in fit
        graph = tf.function(embedding).get_concrete_function(tf.TensorSpec([None, 3], tf.int32)).graph
    computed: set[Any] = set()
    left = [*(each.op for each in graph.outputs), *graph.control_outputs]
    while left:
        node = left.pop()
        if node not in computed:
            computed.add(node)
            left += [*(each.op for each in node.inputs), *node.control_inputs]
    whole = [node for node in graph.get_operations() if node.type == "ReadVariableOp"]
    whole = [node.outputs[0] for node in whole if node.outputs[0].shape.rank == 2]
    return [each.name for each in whole if computed & set(each.consumers())]


def _saved(strategy: tf.distribute.Strategy, model: Any, folder: Path) -> dict[str, bool]:
    """Save in each way, change the weights, and say whether loading brings them back."""
    folder.mkdir()
    weights = model.get_weights()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    slots = [np.array(each) for each in model.optimizer.variables]
    path = checkpoint.write(str(folder / "checkpoint"))
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")

    def is_back(take: Any) -> bool:
        with strategy.scope():
            model.set_weights([each * 0 for each in weights])
            for each in model.optimizer.variables:
                each.assign(each * 0)
            take()
        return all(np.array_equal(*pair) for pair in zip(weights, model.get_weights(), strict=True))

    found = {"checkpoint": is_back(lambda: checkpoint.read(path).assert_consumed())}
    found["slots"] = all(np.array_equal(a, b) for a, b in zip(slots, model.optimizer.variables, strict=True))
    found["weights"] = is_back(lambda: model.load_weights(folder / "model.weights.h5"))
    alone = keras.models.load_model(folder / "model.keras", compile=False)
    found["keras"] = all(np.array_equal(*pair) for pair in zip(weights, alone.get_weights(), strict=True))
    alone.set_weights([each * 0 for each in weights])
    tf.train.Checkpoint(model=alone).read(path).expect_partial()
    found["checkpoint alone"] = all(
        np.array_equal(*pair) for pair in zip(weights, alone.get_weights(), strict=True)
    )
    return found
