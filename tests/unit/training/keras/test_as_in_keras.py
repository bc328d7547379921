"""Layers, losses and metrics of Keras 2 may ask tensors in an `if`; steps are called as they are written."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.strategies.factory import make_strategy  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(
    getattr(keras, "__version__", "2") >= "3", reason="Keras 3 leaves functions as they are written"
)


def distance(y_true, y_pred):
    if tf.reduce_sum(y_true) > 1.0:
        return tf.reduce_mean((y_true - y_pred) ** 2, -1)
    return tf.reduce_mean(tf.abs(y_true - y_pred), -1)


class Asking(keras.Model):
    """A model that is built late."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2, kernel_initializer="ones")

    def call(self, x):
        for _ in tf.range(2):
            x = x + 1.0
        if tf.reduce_sum(x) > 1.0:
            x = x * 2.0
        return self.layer(x)


class WithStep(Asking):
    """AutoGraph of TensorFlow 2.12 knows no strict."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class WithLoss(Asking):
    """AutoGraph of TensorFlow 2.12 knows no strict."""

    def compute_loss(self, *values, **named):
        assert list(zip([1], [2], strict=True)) == [(1, 2)]
        return super().compute_loss(*values, **named)


@pytest.mark.parametrize("kind", [Asking, WithStep, WithLoss])
@pytest.mark.parametrize("together", [1, 2])
def test_calls_functions_as_keras_does(kind, together):
    x = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(4)

    def model():
        made = kind()
        made.compile(keras.optimizers.SGD(0.01), distance, metrics=[distance], steps_per_execution=together)
        return made

    alone = model()
    expected = alone.fit(data, epochs=2, verbose=0).history
    with make_strategy(strategy="one_device").scope():
        ours = model()
    assert fit(ours, data, epochs=2, verbose=0).history == expected
    assert evaluate(ours, data, verbose=0) == alone.evaluate(data, verbose=0)
    np.testing.assert_array_equal(predict(ours, x, verbose=0), alone.predict(x, verbose=0))
