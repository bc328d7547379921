"""One process draws what Keras's own fit draws, in every step."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.fit import fit  # noqa: E402  # after the check that TensorFlow is there

keras = tf.keras


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 draws by the place of an operation in its graph")
def test_one_process_draws_what_keras_draws():
    class Noise(keras.layers.Layer):
        """A layer that leaves the seed to Keras."""

        def call(self, inputs, training=False):
            return inputs + keras.random.normal(tf.shape(inputs)) if training else inputs

    def model():
        keras.utils.set_random_seed(5)
        made = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8),
                keras.layers.Dropout(0.5),
                Noise(),
                keras.layers.Dense(1),
            ]
        )
        made.compile("adam", "mse")
        return made

    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    kerass = model()
    kerass.fit(data, epochs=2, shuffle=False, verbose=0)
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    with strategy.scope():
        ours = model()
    fit(ours, data, strategy=strategy, epochs=2, verbose=0)

    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 draws by the place of an operation in its graph")
@pytest.mark.parametrize("is_seeded", [False, True])
def test_the_next_model_begins_with_the_weights_that_it_has_without_tfdist(is_seeded):
    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs if is_seeded else inputs + keras.random.normal(tf.shape(inputs))

    def begun(train):
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        weights = []
        for _ in range(3):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), Noise()])
            model.compile("sgd", "mse")
            weights.append(model.get_weights()[0])
            train(model, np.ones((4, 2)), np.ones((4, 3)), verbose=0)
        return weights

    for mine, its in zip(begun(fit), begun(keras.Model.fit), strict=True):
        np.testing.assert_array_equal(mine, its)
