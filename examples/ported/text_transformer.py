"""Classify sequences of words with a small transformer."""

import keras
import numpy as np
from keras import layers

import tfdist

tfdist.start()

VOCABULARY, LENGTH, WIDTH = 200, 24, 32


def load_data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw sentences; a sentence is positive if word 7 comes before word 9 in it."""
    rng = np.random.default_rng(seed)
    sentences = rng.integers(10, VOCABULARY, (count, LENGTH))
    for sentence, places in zip(
        sentences, rng.permuted(np.tile(np.arange(LENGTH), (count, 1)), axis=1), strict=True
    ):
        sentence[places[0]], sentence[places[1]] = 7, 9
    return sentences, (np.argmax(sentences == 7, axis=1) < np.argmax(sentences == 9, axis=1)).astype("int32")


def transformer_block(inputs: keras.KerasTensor) -> keras.KerasTensor:
    """Apply attention and a dense network, each with a residual connection and normalization."""
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH)(inputs, inputs)
    hidden = layers.LayerNormalization()(inputs + attended)
    outputs = layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(hidden))
    return layers.LayerNormalization()(hidden + outputs)


x_train, y_train = load_data(4000, seed=0)
x_test, y_test = load_data(500, seed=1)

words = keras.Input((LENGTH,), dtype="int32")
positions = layers.Embedding(LENGTH, WIDTH)(keras.ops.arange(LENGTH))
hidden = transformer_block(layers.Embedding(VOCABULARY, WIDTH)(words) + positions)
pooled = layers.GlobalAveragePooling1D()(transformer_block(hidden))
model = keras.Model(words, layers.Dense(1, activation="sigmoid")(pooled))

model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=3, restore_best_weights=True)
model.fit(x_train, y_train, batch_size=64, epochs=4, validation_data=(x_test, y_test), callbacks=[stop])
print(f"test accuracy {model.evaluate(x_test, y_test, verbose=0)[1]:.3f}")
