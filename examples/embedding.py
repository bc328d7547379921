"""Train a layer and an embedding that no parameter server holds alone, and count what goes over the wire.

    tfdist launch --workers 2 --ps 2 -- python examples/embedding.py

Both are cut in two, a shard on each ps. Of the layer a step needs all weights, and sends all gradients; of
the embedding, with a row for each of two million users, only the rows that its batch names. The bytes are
what the kernels of the tasks have counted at their sockets.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

import tfdist

WEIGHTS, WIDTH, BATCH, USERS = 1024, 16, 256, 20  # users: of an example
Data = Callable[[tf.distribute.InputContext], tf.data.Dataset]
Drawn = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def data(drawn: Drawn) -> Data:
    """Make the function that makes a worker's own batches, each drawn from a seed of its own."""
    return lambda context: tf.data.Dataset.random(seed=1 + context.input_pipeline_id).map(drawn)


def points(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draw points, and whether the first half of their numbers adds up to more than 0."""
    x = tf.random.stateless_normal([BATCH, WEIGHTS], tf.stack([seed, 0]))
    return x, tf.cast(tf.reduce_sum(x[:, : WEIGHTS // 2], axis=1, keepdims=True) > 0, tf.float32)


def users_of(rows: int) -> Drawn:
    """Make the function that draws users, each of whom is for or against, and what most of them are."""

    def drawn(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # As in life, few users are met often, and most of them hardly ever.
        uniform = tf.random.stateless_uniform([BATCH, USERS], tf.stack([seed, 0]))
        users = tf.minimum(tf.cast(float(rows) ** uniform, tf.int32), rows) - 1
        votes = 1 - 2 * tf.cast(users % 2, tf.float32)
        return users, tf.cast(tf.reduce_sum(votes, axis=1, keepdims=True) > 0, tf.float32)

    return drawn


def layer_model() -> tf.keras.Model:
    """Make a model of one large layer, and hardly more."""
    layers = tf.keras.layers
    hidden = layers.Dense(4 * WEIGHTS, "relu")
    return tf.keras.Sequential([tf.keras.Input((WEIGHTS,)), hidden, layers.Dense(1)])


def embedding_model(rows: int) -> tf.keras.Model:
    """Make a model of a row of numbers for each user, and hardly more."""
    layers = tf.keras.layers
    users = tf.keras.Input((USERS,), dtype="int32")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(rows, WIDTH)(users))
    return tf.keras.Model(users, layers.Dense(1)(mean))


def parts(model: tf.keras.Model) -> Iterator[Any]:
    """Yield the variables that a model trains, those in shards shard by shard."""
    for variable in model.trainable_variables:
        value = variable if isinstance(variable, tf.Variable) else variable.value  # of Keras 3's own
        yield from getattr(value, "variables", [value])


def train(strategy: Any, model: tf.keras.Model, batches: Data, steps: int) -> None:
    """Train a model; say where its variables are, what was learned, and what was sent."""
    tfdist.fit(model, batches, strategy=strategy, steps_per_epoch=4, verbose=0)  # it traces
    with tfdist.Traffic(strategy) as traffic:
        history = tfdist.fit(model, batches, strategy=strategy, steps_per_epoch=steps, verbose=0).history
    print(f"accuracy {history['binary_accuracy'][0]:.3f} while {steps} steps were taken")
    size = 0
    for part in parts(model):
        size += part.dtype.size * part.shape.num_elements()
        if part.shape.num_elements() > 4 * WEIGHTS:
            print(
                f"{list(part.shape)} on {tf.DeviceSpec.from_string(part.device).job}"
                f":{tf.DeviceSpec.from_string(part.device).task}"
            )
    print(f"{size / 1e6:.2f} MB of variables")
    for job, what in (("ps", "variables"), ("worker", "gradients")):
        sent = sum(sent for task, sent in traffic.bytes_sent.items() if task.startswith(job)) / steps
        print(f"a step has {sent / 1e6:.2f} MB sent by {job} tasks, {sent / size:.2%} of that: {what}")


def main() -> None:
    """Serve; or be the chief, and train both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="users that the embedding has a row for")
    parser.add_argument("--steps", type=int, default=400)
    flags = parser.parse_args()
    cluster = tfdist.ClusterConfig.from_environment()
    if cluster.serves:
        tfdist.serve(cluster)
        return
    strategy = tfdist.make_strategy(cluster, "parameter_server", min_shard_bytes=1 << 20, max_shards=2)
    for what, make_model, drawn, rate, steps in (
        ("a layer", layer_model, points, 0.01, flags.steps // 10),
        ("an embedding", lambda: embedding_model(flags.rows), users_of(flags.rows), 5.0, flags.steps),
    ):
        print(f"\n{what}")
        with strategy.scope():
            model = make_model()
            loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
            metrics = [tf.keras.metrics.BinaryAccuracy(threshold=0.0)]
            model.compile(tf.keras.optimizers.SGD(rate), loss, metrics=metrics)
        train(strategy, model, data(drawn), steps)


if __name__ == "__main__":
    main()
