"""Check that what a model returns is recognised, wherever its softmax is."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.models.logits_or_probabilities import outputs_of

keras = tf.keras
IMAGES = np.random.default_rng(0).integers(0, 256, size=(16, 4, 4, 1)).astype(np.uint8)


class Softmax(keras.layers.Layer):
    def call(self, inputs):
        return tf.nn.softmax(inputs)


class Sigmoid(keras.layers.Layer):
    def call(self, inputs):
        return tf.nn.sigmoid(inputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.softmax = keras.layers.Softmax()  # made before the layer that it follows
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(3)

    def call(self, images):
        return self.softmax(self.dense(self.flatten(tf.cast(images, tf.float32) / 255)))


def sequential(*layers):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), *layers]
    )


def ensemble():
    one, other = (sequential(keras.layers.Dense(3, "softmax")) for _ in range(2))
    images = keras.Input((4, 4, 1))
    return keras.Model(images, keras.layers.Average()([one(images), other(images)]))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: sequential(keras.layers.Dense(3)), "logits"),
        (lambda: sequential(keras.layers.Dense(3, kernel_initializer="zeros")), "logits"),
        # Outputs from 0 to 1 that are logits all the same.
        (lambda: sequential(keras.layers.Dense(3, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(0.5))), "logits"),
        (lambda: sequential(keras.layers.Dense(3, kernel_initializer="zeros", bias_initializer="ones"), keras.layers.Activation("linear")), "logits"),
        (lambda: sequential(keras.layers.Dense(3, "softmax")), "probabilities"),
        (lambda: sequential(keras.layers.Dense(3), keras.layers.Softmax(), keras.layers.Activation("linear")), "probabilities"),
        (lambda: sequential(keras.layers.Dense(3), Softmax()), "probabilities"),
        (lambda: sequential(keras.layers.Dense(3, "sigmoid")), "probabilities"),
        (lambda: sequential(keras.layers.Dense(3), Sigmoid()), "unknown"),
        (Subclassed, "probabilities"),
        (ensemble, "probabilities"),
    ],
)  # fmt: skip
def test_the_outputs_are_recognised(make, expected):
    assert outputs_of(make(), IMAGES, 3) == expected


def test_outputs_of_another_shape_are_refused():
    with pytest.raises(
        ConfigError, match=r"of the shape \[16, 5\], one for each class .*, received \[16, 3\]$"
    ):
        outputs_of(sequential(keras.layers.Dense(3)), IMAGES, 5)
    model = sequential(keras.layers.Dense(3))
    two = keras.Model(model.inputs[0], [model.outputs[0], model.outputs[0]], name="two")
    with pytest.raises(
        ConfigError, match=r"^model two: expected one tensor as its output, received 2 outputs$"
    ):
        outputs_of(two, IMAGES, 3)
