"""Small models of the kinds that people train, with data and an optimizer for each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = keras.layers
EXAMPLES, BATCH = 29, 7  # 5 batches; the last has one example, so that another replica has none
WORDS, LENGTH = 40, 6


class Entry(NamedTuple):
    """A model that is not compiled yet, its compile arguments, and its data: x, y and perhaps weights."""

    model: Any
    compiled: dict[str, Any]
    data: tuple[Any, ...]


class Count(keras.metrics.Metric):
    """The number of examples, counted by a metric of the user's own."""

    def __init__(self, name: str = "examples", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.cast(tf.shape(y_true)[0], self.total.dtype))

    def result(self) -> Any:
        return self.total + 0.0


def dataset(entry: Entry) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(entry.data).batch(BATCH)


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _words() -> np.ndarray:
    """Sequences that end with zeros, each of another length."""
    words = _rng().integers(1, WORDS, size=(EXAMPLES, LENGTH))
    lengths = 1 + np.arange(EXAMPLES) % LENGTH
    return np.where(np.arange(LENGTH) < lengths[:, None], words, 0).astype("int32")


def _normalization(**options: Any) -> Any:
    """Normalise by the moments of the global batch: those of a replica's part are not those of one process."""
    return layers.BatchNormalization(synchronized=True, momentum=0.5, **options)


class _TokensAndPositions(layers.Layer):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.tokens, self.positions = layers.Embedding(WORDS, size), layers.Embedding(LENGTH, size)

    def call(self, words: Any) -> Any:
        return self.tokens(words) + self.positions(tf.range(LENGTH))


def transformer() -> Entry:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = _TokensAndPositions(8)(inputs)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=4, dropout=0.0)(x, x)
    x = layers.LayerNormalization()(x + layers.Dropout(0.0)(attended))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, "gelu")(x)))
    model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(x)))
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.5)
    compiled = {
        "optimizer": optimizer,
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    return Entry(model, compiled, (_words(), _words()[:, 0] % 3))


def lstm() -> Entry:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.LSTM(6, recurrent_dropout=0.0)(x)))
    optimizer = keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True)
    metrics = [keras.metrics.AUC(name="auc")]
    compiled = {"optimizer": optimizer, "loss": "binary_crossentropy", "metrics": metrics}
    return Entry(model, compiled, (_words(), _words()[:, :1] % 2))


def bidirectional_gru() -> Entry:
    """A tag for each word: the loss is a mean over the words that are not masked, the penalty one over examples."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.GRU(3, return_sequences=True))(x)
    model = keras.Model(inputs, layers.TimeDistributed(layers.Dense(3, activity_regularizer="l2"))(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled = {"optimizer": keras.optimizers.Nadam(0.01), "loss": loss, "metrics": ["accuracy"]}
    return Entry(model, compiled, (_words(), _words() % 3))


def resnet() -> Entry:
    def block(x: Any, filters: int) -> Any:
        y = layers.ReLU()(_normalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
        groups = 2 - filters % 2
        conv = layers.Conv2D(filters, 3, padding="same", use_bias=False, groups=groups)
        y = _normalization()(conv(y))
        return layers.ReLU()(layers.Add()([y, layers.Conv2D(filters, 1)(x)]))

    inputs = keras.Input((6, 6, 3))
    x = block(layers.MaxPooling2D()(block(inputs, 3)), 4)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    optimizer = keras.optimizers.SGD(
        keras.optimizers.schedules.CosineDecay(0.1, 8), momentum=0.9, nesterov=True, clipnorm=1.0
    )
    metrics = [keras.metrics.F1Score(average="macro", name="f1")]
    x = _rng().normal(size=(EXAMPLES, 6, 6, 3))
    return Entry(
        model,
        {"optimizer": optimizer, "loss": loss, "metrics": metrics},
        (x, np.eye(3)[np.arange(EXAMPLES) % 3]),
    )


def unet() -> Entry:
    """Each pixel has a weight."""
    inputs = keras.Input((8, 8, 1))
    fine = layers.Conv2D(2, 3, padding="same", activation="tanh")(inputs)
    conv = layers.Conv2D(3, 3, padding="same", activation="tanh", kernel_regularizer="l2")
    coarse = layers.SpectralNormalization(conv)(layers.MaxPooling2D()(fine))  # which writes the kernel
    coarse = layers.SpatialDropout2D(0.0)(_normalization()(coarse))
    back = layers.Conv2DTranspose(2, 2, strides=2)(coarse)
    x = layers.Concatenate()([fine, layers.GroupNormalization(1)(back), layers.UpSampling2D()(coarse)])
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    x = _rng().normal(size=(EXAMPLES, 8, 8, 1))
    weights = _rng().uniform(0.1, 2.0, size=(EXAMPLES, 8, 8))
    metrics = [keras.metrics.BinaryIoU(name="iou")]
    compiled = {
        "loss": "binary_crossentropy",
        "metrics": metrics,
        "weighted_metrics": ["mae", "binary_accuracy"],
    }
    return Entry(model, {"optimizer": keras.optimizers.Adamax(0.01), **compiled}, (x, (x > 0) * 1.0, weights))


def many_outputs() -> Entry:
    """Inputs and outputs by name, a loss and a weight for each, and weights of examples."""
    inputs = {"picture": keras.Input((4, 4, 1), name="picture"), "number": keras.Input((3,), name="number")}
    both = [layers.Flatten()(layers.DepthwiseConv2D(3)(inputs["picture"])), layers.Dense(4)(inputs["number"])]
    x = layers.PReLU()(layers.Concatenate()(both))
    outputs = {"class": layers.Dense(3, "softmax", name="class")(x), "size": layers.Dense(1, name="size")(x)}
    picture, number = _rng().normal(size=(EXAMPLES, 4, 4, 1)), _rng().normal(size=(EXAMPLES, 3))
    y = {"class": np.arange(EXAMPLES) % 3, "size": np.exp(number[:, :1])}
    weights = {"class": _rng().uniform(0.5, 2.0, EXAMPLES), "size": _rng().uniform(0.5, 2.0, EXAMPLES)}
    compiled = {
        "optimizer": keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5, amsgrad=True),
        "loss": {"class": "sparse_categorical_crossentropy", "size": keras.losses.Huber()},
        "loss_weights": {"class": 0.3, "size": 2.0},
        "metrics": {"class": ["accuracy"], "size": ["mae"]},
        "weighted_metrics": {"class": [], "size": ["mse"]},
    }
    return Entry(keras.Model(inputs, outputs), compiled, ({"picture": picture, "number": number}, y, weights))


class _Penalty(layers.Layer):
    """Add a loss that depends on the examples, and a metric of its own, as a VAE's sampling layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="penalty")

    def call(self, x: Any) -> Any:
        penalty = tf.reduce_mean(tf.reduce_sum(tf.square(x), axis=1))
        self.add_loss(0.1 * penalty)
        self.tracker.update_state(tf.reduce_sum(tf.square(x), axis=1))
        return x


def added_losses() -> Entry:
    inputs = keras.Input((5,))
    x = layers.Dense(4, "tanh", activity_regularizer="l2", kernel_regularizer="l1")(inputs)
    x = layers.Dense(3, kernel_constraint="max_norm", bias_regularizer="l2")(_Penalty()(x))
    model = keras.Model(inputs, layers.UnitNormalization()(x))
    compiled = {
        "optimizer": keras.optimizers.Adadelta(0.5),
        "loss": "cosine_similarity",
        "metrics": ["mse"],
    }
    x = _rng().normal(size=(EXAMPLES, 5))
    return Entry(model, compiled, (x, np.sin(x[:, :3])))


def preprocessed() -> Entry:
    """Numbers, categories and texts as they come: tables and statistics are part of the model."""
    numbers = _rng().normal(3.0, 2.0, size=(EXAMPLES, 2))
    colours = np.array(["red", "green", "blue"])[np.arange(EXAMPLES) % 3][:, None]
    texts = np.array(["a good day", "rain again", "good rain", "A day: again!"])[np.arange(EXAMPLES) % 4][
        :, None
    ]
    normal, text = layers.Normalization(), layers.TextVectorization(output_sequence_length=3)
    normal.adapt(numbers)
    text.adapt(texts)
    inputs = [keras.Input((2,)), keras.Input((1,), dtype="string"), keras.Input((1,), dtype="string")]
    colour = layers.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")(inputs[1])
    bins = layers.Discretization([0.0, 2.0, 4.0], output_mode="multi_hot")(inputs[0])
    parts = [normal(inputs[0]), colour, bins, layers.Flatten()(layers.Embedding(12, 4)(text(inputs[2])))]
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(parts)))
    compiled = {"optimizer": keras.optimizers.Adagrad(0.1), "loss": "mse", "metrics": ["mae"]}
    return Entry(model, compiled, ((numbers, colours, texts), np.sin(numbers[:, :1])))


class Lazy(keras.Model):
    """Layers that are made in `call` of a Sequential, built by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = keras.Sequential([layers.Dense(4, "silu"), _normalization(), layers.Dense(2)])

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.stack(inputs["x"], training=training)


def lazy() -> Entry:
    """No layer knows its input's shape before the first batch comes."""
    optimizer = keras.optimizers.Lamb(0.05)
    x = _rng().normal(size=(EXAMPLES, 5))
    compiled = {"optimizer": optimizer, "loss": "mean_squared_logarithmic_error", "metrics": [Count()]}
    return Entry(Lazy(), compiled, ({"x": x}, np.exp(x[:, :2])))


MODELS: dict[str, Callable[[], Entry]] = {
    make.__name__: make
    for make in (
        transformer, lstm, bidirectional_gru, resnet, unet, many_outputs, added_losses, preprocessed, lazy,
    )
}  # fmt: skip
