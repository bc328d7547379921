"""The model that both sides of a comparison train."""

from typing import Any


def build(image_shape: tuple[int, int, int], classes: int) -> Any:
    """Build it, with the Keras that is asked for."""
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.Input(image_shape),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(classes),
        ]
    )
