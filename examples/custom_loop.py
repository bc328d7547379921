"""Train by a loop of your own, with `tf.GradientTape`; the same script on every kind of cluster.

python examples/custom_loop.py                                                       # one process
tfdist launch --workers 2 -- python examples/custom_loop.py                          # mirrored workers
tfdist launch --workers 2 --ps 1 -- python examples/custom_loop.py                   # asynchronous workers
tfdist launch --workers 2 --ps 1 -- python examples/custom_loop.py parameter_server_sync
"""

import sys

import keras
import tensorflow as tf

import tfdist

EXAMPLES, BATCH, EPOCHS = 4096, 64, 3

strategy = tfdist.start(*sys.argv[1:])
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.02)
optimizer.build(model.trainable_variables)
losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def make_dataset() -> tf.data.Dataset:
    """Make points, and whether they lie inside a circle, in batches for all replicas together."""
    points = tf.random.stateless_uniform([EXAMPLES, 2], seed=[1, 2], minval=-1.0)
    inside = tf.cast(tf.reduce_sum(points**2, axis=1) < 0.6, tf.int32)
    return tf.data.Dataset.from_tensor_slices((points, inside)).shuffle(EXAMPLES, seed=1).batch(BATCH)


def train_on_part(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Train on a replica's part of a batch; return its share of the mean loss over the whole batch."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(losses(y, model(x, training=True))) / BATCH
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """Train each replica on its part; return the loss of the whole batch."""
    return strategy.reduce("SUM", strategy.run(train_on_part, args=batch), axis=None)


def train_in_step() -> None:
    """Train the replicas together, each on its part of each batch."""
    batches = strategy.experimental_distribute_dataset(make_dataset())
    for epoch in range(EPOCHS):
        report(epoch, [float(train_step(batch)) for batch in batches])


def train_asynchronously() -> None:
    """Train workers that do not wait for each other, each on batches of its own."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batches = iter(coordinator.create_per_worker_dataset(lambda: make_dataset().repeat()))

    @tf.function
    def train_on_next(iterator: tf.data.Iterator) -> tf.Tensor:
        return train_step(next(iterator))

    for epoch in range(EPOCHS):
        scheduled = [coordinator.schedule(train_on_next, args=(batches,)) for _ in range(EXAMPLES // BATCH)]
        coordinator.join()
        report(epoch, [float(loss.fetch()) for loss in scheduled])


def report(epoch: int, batch_losses: list[float]) -> None:
    """Print the mean loss of an epoch, once for all tasks."""
    if tfdist.is_chief():
        mean = sum(batch_losses) / len(batch_losses)
        print(f"epoch {epoch + 1}: loss {mean:.4f} with {strategy.__class__.__name__}", flush=True)


if isinstance(strategy, tf.distribute.ParameterServerStrategy):
    train_asynchronously()
else:
    train_in_step()
tfdist.save(model, "custom_loop.keras")
