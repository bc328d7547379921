"""Draw the parts of random Keras models: layers for each kind of input."""

import random
from typing import Any

import tensorflow as tf

keras: Any = tf.keras
WORDS, LENGTH = 11, 5
NAMES = ["ash", "beech", "fir", "oak"]


class AddsLoss(keras.layers.Layer):  # type: ignore[misc]
    """A layer that adds a loss of its own."""

    def call(self, x: Any) -> Any:
        """Return x, and add the mean of its squares to the model's loss."""
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x * 1.0


class MovingMean(keras.layers.Layer):  # type: ignore[misc]
    """A layer that writes a variable while it trains."""

    def build(self, shape: Any) -> None:
        """Make the variable."""
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        """Return x less the mean of earlier batches."""
        centred = x - 0.1 * self.mean
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return centred


class Tied(keras.layers.Layer):  # type: ignore[misc]
    """A layer that uses the weights of another one twice."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.down, self.up = keras.layers.Dense(3, "tanh"), keras.layers.Dense(3)

    def build(self, shape: Any) -> None:
        """Make the weights."""
        self.down.build(shape)
        self.up.build((*shape[:-1], 3))

    def call(self, x: Any) -> Any:
        """Return x through the first layer, and twice through the second."""
        return self.up(self.up(self.down(x)))


# -- for each kind of input --


def dense(draw: random.Random) -> Any:
    """Return a dense layer, perhaps with penalties and a constraint."""
    return keras.layers.Dense(
        draw.choice([3, 4, 6]),
        activation=draw.choice([None, "relu", "tanh", "gelu", "selu"]),
        kernel_regularizer=draw.choice([None, None, "l2", "l1"]),
        bias_regularizer=draw.choice([None, None, "l2"]),
        activity_regularizer=draw.choice([None, None, None, "l2"]),
        kernel_constraint=draw.choice([None, None, None, "max_norm", "non_neg", "unit_norm"]),
    )


def normalized(draw: random.Random) -> Any:
    """Return a layer that normalizes a batch."""
    return keras.layers.BatchNormalization(momentum=draw.choice([0.5, 0.9]), synchronized=True)


def on_numbers(draw: random.Random, x: Any) -> Any:
    """Return what some layers make of numbers."""
    layers = keras.layers
    for _ in range(draw.randint(1, 3)):
        make = draw.choice(
            [
                lambda: dense(draw),
                lambda: normalized(draw),
                layers.LayerNormalization,
                lambda: layers.GroupNormalization(1),
                layers.PReLU,
                layers.UnitNormalization,
                AddsLoss,
                MovingMean,
                lambda: layers.SpectralNormalization(layers.Dense(3)),
                Tied,
                lambda: layers.Normalization(mean=0.5, variance=2.0),
                lambda size=x.shape[-1]: within_a_model(draw, size),
                lambda: layers.Lambda(lambda values: values * 0.5),
                lambda: layers.EinsumDense("ab,bc->ac", output_shape=3, bias_axes="c"),
            ]
        )
        x = make()(x)
    return x


def within_a_model(draw: random.Random, size: int) -> Any:
    """Return a model of its own, to be used as a layer."""
    number = keras.Input((size,))
    return keras.Model(number, keras.layers.Add()([dense_of(draw, size)(number), number]))


def dense_of(draw: random.Random, size: int) -> Any:
    """Return a dense layer with a number of units."""
    layer = dense(draw)
    layer.units = size
    return layer


def on_pictures(draw: random.Random, x: Any) -> Any:
    """Return the features of pictures."""
    layers = keras.layers
    kernels = {"kernel_regularizer": draw.choice([None, "l2"])}
    x = draw.choice(
        [
            layers.Conv2D(3, 3, padding="same", **kernels),
            layers.SeparableConv2D(4, 3),
            layers.DepthwiseConv2D(3),
            layers.Conv2DTranspose(2, 2),
        ]
    )(x)
    x = normalized(draw)(x) if draw.random() < 0.6 else x
    x = draw.choice([layers.MaxPooling2D(2), layers.AveragePooling2D(2), layers.UpSampling2D(2)])(x)
    return draw.choice([layers.GlobalAveragePooling2D(), layers.GlobalMaxPooling2D(), layers.Flatten()])(x)


def on_words(draw: random.Random, x: Any) -> Any:
    """Return the features of rows of words, of which the mask may hide some."""
    layers = keras.layers
    x = layers.Embedding(WORDS, 4, mask_zero=draw.random() < 0.5)(x)
    if draw.random() < 0.3:
        x = draw.choice(
            [normalized(draw), layers.Conv1D(4, 2, padding="causal"), layers.TimeDistributed(dense(draw))]
        )(x)
    kind = draw.choice(["lstm", "both ways", "mean", "attention", "one query", "two layers", "cells"])
    if kind == "attention":
        return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 2)(x, x))
    if kind == "one query":
        return layers.Flatten()(layers.Attention(use_scale=True)([x[:, :1], x]))
    if kind == "cells":
        return layers.RNN([layers.SimpleRNNCell(3), layers.GRUCell(2)], unroll=draw.random() < 0.5)(x)
    if kind == "two layers":
        return layers.GRU(2)(layers.LSTM(3, return_sequences=True)(x))
    made = {
        "lstm": layers.LSTM(3),
        "both ways": layers.Bidirectional(layers.GRU(3)),
        "mean": layers.GlobalAveragePooling1D(),
    }
    return made[kind](x)


def on_tags(draw: random.Random, x: Any) -> Any:
    """Return features of each word that the mask does not hide."""
    x = keras.layers.Embedding(WORDS, 4, mask_zero=True)(x)
    if draw.random() < 0.3:
        x = normalized(draw)(x)
    return draw.choice([keras.layers.LSTM(4, return_sequences=True), keras.layers.Dense(4, "tanh")])(x)


def on_series(draw: random.Random, x: Any) -> Any:
    """Return the features of rows of numbers, of which some steps may be missing."""
    layers = keras.layers
    x = layers.Masking(0.0)(x) if draw.random() < 0.5 else x
    x = normalized(draw)(x) if draw.random() < 0.4 else x
    return draw.choice([layers.LSTM(3), layers.GRU(3, go_backwards=True), layers.SimpleRNN(3)])(x)


def on_names(draw: random.Random, x: Any) -> Any:
    """Return the features of strings, by a lookup."""
    layers = keras.layers
    if draw.random() < 0.3:
        return layers.Flatten()(layers.Embedding(9, 3)(layers.Hashing(9)(x)))
    if draw.random() < 0.5:
        return layers.StringLookup(vocabulary=NAMES, output_mode="one_hot")(x)
    return layers.Flatten()(layers.Embedding(len(NAMES) + 1, 3)(layers.StringLookup(vocabulary=NAMES)(x)))


BODIES = {
    "numbers": on_numbers,
    "pictures": on_pictures,
    "words": on_words,
    "tags": on_tags,
    "series": on_series,
    "names": on_names,
}
