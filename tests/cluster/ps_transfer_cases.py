"""Train over the TCP transport and without it, and say whether anything differs."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.plan_buckets import BucketBytes
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit

keras = tf.keras
STEPS, EPOCHS, WORDS = 6, 2, 50  # whole executions of three


def model_of(strategy: tf.distribute.Strategy, **compiled: Any) -> Any:
    """Make a model with all that variables can be: read whole and by rows, averaged, penalized, of one number."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        words = keras.Input((4,), dtype="int32")
        x = keras.layers.Flatten()(keras.layers.Embedding(WORDS, 8)(words))
        x = keras.layers.Dense(64, "relu", kernel_regularizer="l2")(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.Dropout(0.2, seed=5)(x)
        x = keras.layers.PReLU(shared_axes=[1])(x)
        model = keras.Model(words, keras.layers.Dense(3)(x))
        model.compile(
            **{
                "optimizer": keras.optimizers.Adam(0.01, clipvalue=0.5),
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "steps_per_execution": 3,
                **compiled,
            }
        )
    return model


def data() -> tf.data.Dataset:
    rng = np.random.default_rng(1)
    words = rng.integers(0, WORDS, (44, 4)).astype("int32")
    return tf.data.Dataset.from_tensor_slices((words, words.sum(axis=1) % 3)).batch(8).repeat()


def trained(strategy: tf.distribute.Strategy, **compiled: Any) -> dict[str, Any]:
    model = model_of(strategy, **compiled)
    begun = [np.asarray(each).tolist() for each in model.get_weights()]
    before = 0 if strategy.ps_transfer is None else strategy.ps_transfer.bytes_sent
    history = fit(model, data(), strategy=strategy, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0)
    sent = 0 if strategy.ps_transfer is None else strategy.ps_transfer.bytes_sent - before
    return {
        "weights": [np.asarray(each).tolist() for each in model.get_weights()],
        "begun": begun,
        "loss": history.history["loss"],
        "evaluated": evaluate(model, data().take(3), strategy=strategy, verbose=0, return_dict=True),
        "sent": sent,
        "dense": sum(4 * int(np.prod(each.shape)) for each in model.trainable_variables[1:]),
    }


def impatient(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train without an end, and ask after some seconds without an answer who is silent."""
    import lost_cases

    from tfdist.training.runners.pending_executions import ScheduledExecutions

    ScheduledExecutions.seconds_to_come_back = 5.0
    return lost_cases.fitting(strategy, folder)


def way(strategy: tf.distribute.Strategy, folder: Path) -> str:
    """Return the transport of variables and gradients: `ps_transfer` or `grpc`."""
    del folder
    return "grpc" if strategy.ps_transfer is None else "ps_transfer"


def narrowed(strategy: tf.distribute.Strategy, folder: Path) -> list[dict[str, Any]]:
    """Train in fewer bits, and by TensorFlow's gRPC in all of them."""
    del folder
    narrow = trained(strategy)
    strategy.ps_transfer = None
    return [narrow, trained(strategy)]


def both_ways(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train twice, the second time by TensorFlow's gRPC."""
    del folder
    tcp, strategy.ps_transfer = strategy.ps_transfer, None
    found = {"grpc": trained(strategy)}
    strategy.ps_transfer = tcp
    found["ps_transfer"] = trained(strategy)
    strategy.ps_transfer.bucket_bytes = BucketBytes(40, 100)  # so few that all but the smallest go alone
    found["in buckets"] = trained(strategy)
    return found


class InAWayOfItsOwn(keras.optimizers.SGD):
    """Update variables where the gradients are, and leave the last one as it is."""

    def _backend_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        for gradient, variable in list(zip(grads, variables, strict=True))[:-1]:
            variable.value.assign_sub(learning_rate * tf.convert_to_tensor(gradient))


OPTIMIZERS = {
    "own": lambda: InAWayOfItsOwn(0.1),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


def in_branches(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train both ways by optimizers that update in branches of the graph, or after more than one step."""
    del folder
    found, tcp = {}, strategy.ps_transfer
    for name, make in OPTIMIZERS.items():
        found[name] = []
        for strategy.ps_transfer in (tcp, None):
            with strategy.scope():
                optimizer = make()
            found[name].append(trained(strategy, optimizer=optimizer))
    return found


class InOtherGraphs(keras.layers.Layer):
    """Compute a layer again for its gradients, and draw and count in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))
        self.dropout = keras.layers.Dropout(0.2, seed=5)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.turns = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        def turn(_: Any, values: Any) -> Any:
            self.turns.assign_add(1.0)
            return self.dropout(values, training=training)

        recomputed = tf.recompute_grad(lambda values: self.dense(values))(inputs)
        return keras.ops.fori_loop(0, 3, turn, recomputed)


def in_other_graphs(strategy: tf.distribute.Strategy, folder: Path) -> list[dict[str, Any]]:
    """Train weights that a function with a gradient of its own reads, both ways."""
    del folder
    found, tcp = [], strategy.ps_transfer
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(24, 8)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")
    for strategy.ps_transfer in (tcp, None):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layer = InOtherGraphs()
            model = keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        begun = np.asarray(layer.dense.kernel).tolist()
        fit(model, x, y, strategy=strategy, batch_size=8, epochs=2, shuffle=False, verbose=0)
        weights = [np.asarray(each).tolist() for each in model.get_weights()]
        kernel, turns = np.asarray(layer.dense.kernel).tolist(), float(np.asarray(layer.turns))
        found.append({"begun": begun, "kernel": kernel, "turns": turns, "weights": weights})
    return found
