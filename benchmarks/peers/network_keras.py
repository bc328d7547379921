"""Build the models of the network benchmark with Keras 3 or 2, and models that have their weights alone."""

from typing import Any

import tensorflow as tf
from network_layers import LAYERS, ROWS, TOKENS, VOCABULARY, WIDTH, time_shares

from tfdist.models.model_by_name import build

__all__ = ["bare", "loss_of", "whole"]

keras: Any = tf.keras
_SHAPES = {"mnist_cnn": (28, 28, 1), "cifar10_cnn": (24, 24, 3)}
_OF_FORWARD = 1 / 3  # of a step's time; the backward pass multiplies twice as often


def whole(name: str) -> Any:
    """Build a model."""
    if name in _SHAPES:
        return build(name, _SHAPES[name], 10)
    return _transformer() if name == "transformer" else _two_tower()


def loss_of(name: str) -> Any:
    """Return the loss function of a model."""
    if name == "two_tower":
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.utils.register_keras_serializable()
class _Positions(keras.layers.Layer):  # type: ignore[misc]
    def build(self, shape):
        self.table = self.add_weight(shape=(TOKENS, WIDTH), initializer="zeros", name="table")
        super().build(shape)

    def call(self, x):
        return x + self.table


def _transformer() -> Any:
    """Build a transformer that predicts the token after 16."""
    layers = keras.layers
    tokens = keras.Input((TOKENS,), dtype="int32")
    x = _Positions()(layers.Embedding(VOCABULARY, WIDTH)(tokens))
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, WIDTH // 4)(y, y)])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(4 * WIDTH, activation="relu")(y)
        x = layers.Add()([x, layers.Dense(WIDTH)(y)])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(
        tokens, layers.Dense(VOCABULARY)(layers.Flatten()(layers.Cropping1D((TOKENS - 1, 0))(x)))
    )


def _two_tower() -> Any:
    """Build two towers, each over the mean of eight rows of one table."""
    layers = keras.layers
    numbers = keras.Input((TOKENS,), dtype="int32")
    rows = layers.Embedding(ROWS, 32)(numbers)
    half = TOKENS // 2
    towers = [
        layers.Dense(64)(layers.Dense(128, activation="relu")(layers.GlobalAveragePooling1D()(part)))
        for part in (layers.Cropping1D((0, half))(rows), layers.Cropping1D((half, 0))(rows))
    ]
    return keras.Model(numbers, layers.Dot(1)(towers))


class _Weights(keras.layers.Layer):  # type: ignore[misc]
    """Own the weights of a layer; their gradients come once the time of its backward pass has passed."""

    def __init__(self, shapes, seconds):
        super().__init__()
        self.shapes, self.seconds = shapes, seconds

    def build(self, shape):
        self.own = [
            self.add_weight(shape=each, initializer="zeros", name=f"weight{place}")
            for place, each in enumerate(self.shapes)
        ]
        super().build(shape)

    def call(self, x):
        total = tf.add_n([tf.reduce_sum(tf.convert_to_tensor(each)) for each in self.own])
        return _pause(x + total, self.seconds) if self.seconds else x + total


def _pause(x, seconds):
    @tf.custom_gradient
    def paused(x):
        def backward(upstream):
            return _sleep(upstream, seconds * (1 - _OF_FORWARD), after=x)

        return _sleep(x, seconds * _OF_FORWARD, after=x), backward

    return paused(x)


def _sleep(x, seconds, after):
    def sleep(x, _):
        import time

        time.sleep(seconds)
        return x

    # What computes has no side effects: TensorFlow returns no gradient of a branch before those are over.
    y = tf.numpy_function(sleep, [x, after], x.dtype, stateful=False)
    y.set_shape(x.shape)
    return y


def bare(name: str, seconds: float) -> Any:
    """Build a model of the same weights that computes nothing, but sleeps for so long in each step."""
    x_in = (
        keras.Input(_SHAPES[name], dtype="uint8")
        if name in _SHAPES
        else keras.Input((TOKENS,), dtype="int32")
    )
    x = _AlmostZeros()(x_in)
    for layer, share in zip(LAYERS[name], time_shares(name), strict=True):
        if layer.is_table:
            rows = keras.layers.Embedding(*layer.weights[0])(x_in)
            x = keras.layers.Add()([x, _Sum()(rows)])
        else:
            x = _Weights(layer.weights, seconds * share)(x)
    return keras.Model(x_in, x)


class _AlmostZeros(keras.layers.Layer):  # type: ignore[misc]
    """Numbers that TensorFlow does not know: what depends on constants it computes only once."""

    def call(self, x):
        numbers = tf.reshape(x, (tf.shape(x)[0], -1))[:, :1]
        return tf.cast(numbers, tf.float32) * 1e-30


class _Sum(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x):
        return tf.reduce_sum(x, [1, 2])[:, None]
