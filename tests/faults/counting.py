"""A model that counts what it is trained: one weight grows by exactly 1 in each step of each replica."""

from typing import Any

from gates import BUILD, add_gates, wait_at, wait_for_step

RATE = 2.0**-6  # the learning rate that it has to be trained with; a power of two, so that nothing is rounded


def build(image_shape: tuple[int, int, int], classes: int) -> Any:
    """Build a model that is small, and random: what dropout draws has to be gone on with too."""
    import tensorflow as tf

    add_gates()
    wait_at(BUILD)

    class Counted(tf.keras.layers.Layer):
        """Add a loss whose gradient, averaged over the replicas and times the rate, is minus their number."""

        def build(self, shape: Any) -> None:
            self.steps = self.add_weight(name="counted", shape=(), initializer="zeros")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                replicas = tf.distribute.get_strategy().num_replicas_in_sync
                self.add_loss(-self.steps * (replicas / RATE))
                with tf.control_dependencies(wait_for_step(tf.stop_gradient(self.steps / replicas))):
                    return tf.identity(inputs)
            return inputs

    return tf.keras.Sequential(
        [
            tf.keras.Input(image_shape),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.2),
            Counted(),
            tf.keras.layers.Dense(classes),
        ]
    )
