"""Data of a linear function, and a callback that records its calls, for the tests of fit, evaluate and predict."""

import numpy as np
import tensorflow as tf


def points(count=20):
    x = np.random.default_rng(1).normal(size=(count, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def batches(size=5):
    return tf.data.Dataset.from_tensor_slices(points()).batch(size)


class Trace(tf.keras.callbacks.Callback):
    """Record every call of `evaluate` or `predict` with the loss or the number of outputs; stop after a batch."""

    def __init__(self, until=None):
        super().__init__()
        self.calls, self.until = [], until

    def on_test_begin(self, logs=None):
        self.calls.append("begin")

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append((batch, round(float(logs["loss"]), 4)))
        if batch == self.until:
            self.model.stop_evaluating = True

    def on_test_end(self, logs=None):
        self.calls.append(("end", round(float(logs["loss"]), 4)))

    def on_predict_begin(self, logs=None):
        self.calls.append("begin")

    def on_predict_batch_end(self, batch, logs=None):
        self.calls.append((batch, logs["outputs"].shape[0]))
        if batch == self.until:
            self.model.stop_predicting = True

    def on_predict_end(self, logs=None):
        self.calls.append("end")
