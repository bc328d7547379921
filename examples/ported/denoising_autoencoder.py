"""Remove noise from images with a convolutional autoencoder."""

import keras
import numpy as np
from keras import layers

import tfdist

tfdist.start()

rng = np.random.default_rng(0)
rows, columns = np.mgrid[:28, :28]
centres = rng.uniform(8, 20, (1500, 2))
distance = np.hypot(rows - centres[:, :1, None], columns - centres[:, 1:, None])
clean = (distance < rng.uniform(3, 8, (1500, 1, 1))).astype("float32")[..., None]
noisy = np.clip(clean + rng.normal(0, 0.4, clean.shape), 0, 1).astype("float32")

inputs = keras.Input((28, 28, 1))
x = layers.Conv2D(16, 3, activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D(2, padding="same")(x)
x = layers.Conv2D(16, 3, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, 3, strides=2, activation="relu", padding="same")(x)
outputs = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
model = keras.Model(inputs, outputs)

model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
model.fit(noisy[:1200], clean[:1200], batch_size=64, epochs=4, shuffle=True, validation_split=0.1)

restored = model.predict(noisy[1200:], verbose=0)
before, after = (np.abs(images - clean[1200:]).mean() for images in (noisy[1200:], restored))
print(f"error {before:.3f} before, {after:.3f} after")
