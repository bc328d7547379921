"""Classify small images with a convolutional network."""

import keras
import numpy as np
from keras import layers

import tfdist

tfdist.start()


def load_data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw noisy images of horizontal and of vertical bars, and of crosses."""
    rng = np.random.default_rng(seed)
    images, labels = rng.normal(0, 0.3, (count, 28, 28, 1)), rng.integers(0, 3, count)
    for image, label, (row, column) in zip(images, labels, rng.integers(4, 24, (count, 2)), strict=True):
        if label != 1:
            image[row - 1 : row + 1] += 1
        if label != 0:
            image[:, column - 1 : column + 1] += 1
    return images.astype("float32"), labels


x_train, y_train = load_data(2000, seed=0)
x_test, y_test = load_data(500, seed=1)

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=3, validation_split=0.1)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy {accuracy:.3f}")
print("the first image is class", model.predict(x_test[:1], verbose=0).argmax())
