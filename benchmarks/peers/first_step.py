"""Import TensorFlow, make the MNIST model, take one step; say when that is done, and how large this is."""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def resident() -> int:
    """Return this process's resident size in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


import tensorflow as tf  # noqa: E402  # what its import takes is a part of what is measured

bare = resident()
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        tf.keras.Input((28, 28, 1)),
        layers.Conv2D(32, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(1024, activation="relu"),
        layers.Dense(10),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
images, labels = tf.zeros([128, 28, 28, 1]), tf.zeros([128], tf.int32)
model.fit(tf.data.Dataset.from_tensors((images, labels)), verbose=0)
json.dump({"at": time.time(), "bare": bare, "after": resident()}, sys.stdout)
