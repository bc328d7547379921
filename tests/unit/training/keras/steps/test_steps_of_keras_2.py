"""A custom step of a Keras 2 model whose parts are built when they are called, as TensorFlow Recommenders has it."""

import numpy as np
import pytest

from tfdist import fit, make_strategy

tf = pytest.importorskip("tensorflow")
keras = tf.keras

pytestmark = pytest.mark.skipif(
    keras.__version__ >= "3", reason="Keras 3 has losses and parts of another kind"
)


class _Towers(keras.Model):
    """Two towers, each built when it is called, and a loss that averages over the batch."""

    def __init__(self):
        super().__init__()
        self.query = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
        self.candidate = keras.Sequential([keras.layers.Dense(2)])
        self.distance = keras.losses.MeanSquaredError()

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.distance(self.candidate(data["candidate"]), self.query(data["query"]))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_parts_that_are_not_built_and_a_loss_that_averages_train_as_in_keras():
    draw = np.random.default_rng(0).normal
    examples = {"query": draw(size=(16, 3)), "candidate": draw(size=(16, 5))}
    data = tf.data.Dataset.from_tensor_slices(examples).batch(4)

    def trained(scope, train):
        keras.utils.set_random_seed(1)
        with scope:
            model = _Towers()
            model.compile(keras.optimizers.SGD(0.1))
        return train(model).history["loss"], model.get_weights()

    strategy = make_strategy(None, "one_device")
    losses, weights = trained(
        tf.distribute.get_strategy().scope(), lambda model: model.fit(data, epochs=2, verbose=0)
    )
    ours, own = trained(
        strategy.scope(), lambda model: fit(model, data, epochs=2, verbose=0, strategy=strategy)
    )

    np.testing.assert_allclose(ours, losses, rtol=1e-6)
    for one, other in zip(own, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
