"""Models, losses and metrics that are tf.functions compute as in Keras's own fit: on one device and on two."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(
        keras.__version__ < "3", reason="Keras 2 writes to variables in the graph of a function"
    ),
    pytest.mark.usefixtures("in_float64"),
]
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(13, 4)), RNG.normal(size=(13, 2))


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


class Model(keras.Model):
    """A model that is called in a graph of its own, in which layers write their state, and draw numbers."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(3), keras.layers.Dense(2)
        self.normalization = keras.layers.BatchNormalization(synchronized=True)
        self.dropout = keras.layers.Dropout(0.0, seed=1)

    @tf.function
    def call(self, inputs, training=False):
        hidden = self.normalization(self.hidden(inputs), training=training)
        if tf.shape(inputs)[-1] > 9:  # which AutoGraph converts
            hidden = -hidden
        return self.out(self.dropout(hidden, training=training))


class Sum(keras.metrics.Metric):
    """A metric that counts in a graph of its own."""

    def __init__(self):
        super().__init__(name="distance")
        self.total = self.add_weight(name="total", initializer="zeros")

    @tf.function
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.abs(y_true - y_pred)))

    def result(self):
        return self.total


@tf.function
def sum_of_squares(y_true, y_pred):
    return tf.reduce_sum(tf.square(y_true - y_pred)) / 10.0


@tf.function(autograph=False)
def masked(y_true, y_pred):
    is_known = tf.cast(y_true[:, 0] > 0.0, y_pred.dtype)
    squares = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
    return tf.reduce_sum(squares * is_known) / tf.maximum(tf.reduce_sum(is_known), 1.0)


@pytest.mark.parametrize("run_eagerly", [False, again(True)], ids=["in a graph", "eagerly"])
def test_a_model_of_functions_trains_as_in_keras(strategy, run_eagerly, caplog):
    has_graph = not run_eagerly  # which shows how a function computes one number

    def made():
        keras.utils.set_random_seed(1)
        model = Model()
        model(X[:2])  # no batch has this size: Keras would test one with variables as they are now
        metrics = [Sum(), masked] if has_graph else [Sum()]
        loss = sum_of_squares if has_graph else "mse"
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=metrics, run_eagerly=run_eagerly)
        return model

    kerass = made()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    expected = kerass.fit(data, epochs=2, shuffle=False, verbose=0).history
    with strategy.scope():
        ours = made()
    found = fit(ours, data, epochs=2, verbose=0).history
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name  # Keras adds up its logs in float32
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-9, abs=1e-11)
    tested = kerass.evaluate(data, verbose=0, return_dict=True)
    assert evaluate(ours, data, verbose=0, return_dict=True) == pytest.approx(tested, rel=1e-6)
    assert predict(ours, X, batch_size=4) == pytest.approx(kerass.predict(X, verbose=0), rel=1e-9, abs=1e-11)
    assert "one number for a batch" not in caplog.text


@tf.function
@tf.custom_gradient
def negative_gradient(values):
    return tf.identity(values), lambda upstream: -upstream


class Reversing(keras.Model):
    """A model in which TensorFlow compiles grouped convolutions, and a function has a gradient of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Conv2D(4, 2, groups=2)
        self.hidden.build((None, 2, 2, 4))  # not in the graph of a function
        self.out = keras.layers.Dense(2)

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 2, 4], tf.float64)])
    def convolved(self, inputs):
        return self.hidden(inputs)

    def call(self, inputs):
        return self.out(negative_gradient(keras.ops.reshape(self.convolved(inputs), (-1, 4))))


def test_functions_that_are_more_than_their_code_compute_as_in_keras(strategy):
    def made():
        keras.utils.set_random_seed(1)
        model = Reversing()
        model(images[:2])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    images = RNG.normal(size=(13, 2, 2, 4))
    kerass = made()
    kerass.fit(images, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    with strategy.scope():
        ours = made()
    fit(ours, images, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-9, abs=1e-11)


def test_functions_are_theirs_again_after_fit(strategy):
    before = vars(type(tf.function(lambda: None)))["__call__"]
    with strategy.scope():
        model = Model()
        model(X[:2])  # no batch has this size: Keras would test one with variables as they are now
        model.compile("sgd", "mse")
        fit(model, X, Y, batch_size=4, verbose=0)
    assert vars(type(tf.function(lambda: None)))["__call__"] is before
