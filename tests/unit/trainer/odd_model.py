"""A model that stumbles over one training image: for `model: {name: odd_model:build}`.

ODD_IMAGE names the file of the image, and ODD_DOES what comes of it: a loss that is `nan`, or a loss as ever
and a gradient that is infinite (`gradient`). ODD_SLEEPS is how long each step of worker 1 takes besides.
"""

import json
import os
import time

import numpy as np
import tensorflow as tf


def image_of(data, batch, place, batch_size=128):
    """Return the image at a place in a global batch."""
    images, _ = next(iter(data.train(batch_size, skip_steps=batch)))
    return images.numpy()[place]


@tf.custom_gradient
def _overflowing(value, bad):
    return tf.identity(value), lambda upstream: (upstream + bad, None)


class Odd(tf.keras.layers.Layer):
    """Pass its first input on, and look in the second for the odd image."""

    def call(self, inputs, training=False):
        value, images = inputs
        if not training:
            return value
        odd = np.load(os.environ["ODD_IMAGE"]).astype(np.float32)
        is_odd = tf.reduce_any(tf.reduce_all(tf.equal(images, odd), axis=[1, 2, 3]))
        if os.environ["ODD_DOES"] == "gradient":
            return _overflowing(value, tf.where(is_odd, np.inf, 0.0))
        value += tf.where(is_odd, np.nan, 0.0)
        if "ODD_SLEEPS" in os.environ and _task_index() == 1:
            # Its result is used, so that the step is not done before.
            value += tf.ensure_shape(tf.py_function(_sleep, [], tf.float32), [])
        return value

    def compute_output_shape(self, shapes):
        return shapes[0]


def _task_index():
    return json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index")


def _sleep():
    time.sleep(float(os.environ["ODD_SLEEPS"]))
    return 0.0


def build(image_shape, classes, kind=tf.keras.Model):
    images = tf.keras.Input(image_shape)
    flat = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(images))
    if (
        getattr(tf.keras, "__version__", "2") >= "3"
    ):  # Keras 2 keeps its random numbers where nobody finds them
        flat = tf.keras.layers.Dropout(0.1)(flat)
    answers = tf.keras.layers.Dense(classes)(flat)
    return kind(images, Odd()([answers, images]))


class Own(tf.keras.Model):
    """A model that trains in a way of its own, of which nobody knows more than what it logs."""

    def train_step(self, data):
        return super().train_step(data)


def build_own(image_shape, classes):
    return build(image_shape, classes, Own)
