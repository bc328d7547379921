"""Train an ordinary Keras model on whatever cluster this process is part of; the same script on every task.

python examples/keras_script.py                                                     # one process
tfdist launch --workers 2 -- python examples/keras_script.py              # mirrored workers
tfdist launch --workers 2 --ps 1 -- python examples/keras_script.py       # parameter server
"""

import tensorflow as tf

import tfdist

EXAMPLES, BATCH = 4096, 64


def make_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Make one input pipeline's part of the data: points, and whether they lie inside a circle."""
    points = tf.random.stateless_uniform([EXAMPLES, 2], seed=[1, 2], minval=-1.0)
    inside = tf.cast(tf.reduce_sum(points**2, axis=1) < 0.6, tf.int32)
    dataset = tf.data.Dataset.from_tensor_slices((points, inside))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.repeat().batch(context.get_per_replica_batch_size(BATCH))


def main() -> None:
    """Train, and say what was learned."""
    strategy = tfdist.start()  # a ps, or a worker beside one, serves here and goes no further
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((2,)), layers.Dense(32, "relu"), layers.Dense(2)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    history = model.fit(make_dataset, epochs=3, steps_per_epoch=EXAMPLES // BATCH)
    if tfdist.is_chief():
        print(f"accuracy {history.history['accuracy'][-1]:.3f} with {strategy.__class__.__name__}")


if __name__ == "__main__":
    main()
