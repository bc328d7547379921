"""What layers add as losses is kept apart for several replicas alone: one replica uses what Keras itself has."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist._utils.keras_private import layers_of  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.keras.rng import Randomness  # noqa: E402
from tfdist.training.keras.steps.custom_step_on_replicas import CustomStepOnReplicas  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="the step is for Keras 3")


NOTED = []


class Noting(keras.Model):
    """A model whose own step notes in what its layers keep the losses that they add."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, activity_regularizer="l2")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        NOTED.extend(layer._loss_ids for layer in layers_of(self))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data)) + tf.add_n(self.losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_one_replica_keeps_the_losses_as_keras_does():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = Noting()
        model.compile("sgd")
    spec = tf.TensorSpec([4, 3], tf.float32)
    CustomStepOnReplicas(model, strategy, "train_step", spec, Randomness(model, strategy))
    assert NOTED
    assert all(isinstance(ids, set) for ids in NOTED)
