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


class SubclassedSigmoid(Subclassed):
    def call(self, images):
        return tf.sigmoid(self.dense(self.flatten(tf.cast(images, tf.float32) / 255)))


class Gated(keras.Model):
    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(3, kernel_initializer="zeros", bias_initializer="ones")
        self.gate = keras.layers.Dense(3, "sigmoid")

    def call(self, images):
        features = self.flatten(tf.cast(images, tf.float32) / 255)
        return self.dense(features) * self.gate(features)


def functional_sigmoid():
    images = keras.Input((4, 4, 1))
    dense = keras.layers.Dense(3)(keras.layers.Flatten()(images))
    operation = keras.ops.sigmoid if hasattr(keras, "ops") else tf.sigmoid
    return keras.Model(images, operation(dense))


def logits_by_pooling():
    keras.utils.set_random_seed(3)
    layers = keras.layers
    small = keras.initializers.RandomUniform(0, 0.001)
    ending = [layers.Conv2D(3, 3, kernel_initializer=small), layers.GlobalAveragePooling2D()]
    return keras.Sequential([keras.Input((4, 4, 1)), layers.Rescaling(1 / 255), *ending])


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
        # A sigmoid that is not a layer follows a dense layer without activation.
        (SubclassedSigmoid, "unknown"),
        (functional_sigmoid, "unknown"),
        # The last layer that was made ends in a sigmoid, and the model does not.
        (Gated, "logits"),
        (logits_by_pooling, "logits"),
        (lambda: sequential(keras.layers.Dense(2, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(0.5)), keras.layers.Reshape((2,))), "logits"),
        (ensemble, "probabilities"),
    ],
)  # fmt: skip
def test_the_outputs_are_recognised(make, expected):
    model = make()
    before = model(IMAGES).numpy()
    assert outputs_of(model, IMAGES, before.shape[1]) == expected
    np.testing.assert_array_equal(model(IMAGES).numpy(), before)


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
