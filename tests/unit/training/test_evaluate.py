"""Evaluating returns, calls and counts what Keras's own evaluate does."""

import pytest

from tfdist.errors import ConfigError, DataError

tf = pytest.importorskip("tensorflow")

from tfdist.training.evaluate import evaluate  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.fit import fit  # noqa: E402
from training_helpers import Trace, batches  # noqa: E402

keras = tf.keras


def made(**options):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


@pytest.fixture
def strategy():
    return tf.distribute.OneDeviceStrategy("/device:CPU:0")


@pytest.mark.parametrize("options", [{}, {"metrics": ["mae", "mape"]}])
@pytest.mark.parametrize("arguments", [{}, {"return_dict": True}, {"steps": 2}])
def test_returns_what_keras_returns(strategy, options, arguments):
    expected = made(**options).evaluate(batches(), verbose=0, **arguments)
    with strategy.scope():
        model = made(**options)
    found = evaluate(model, batches(), verbose=0, **arguments)  # the model knows its strategy

    assert type(found) is type(expected)
    assert found == pytest.approx(expected, rel=1e-5)


class WarmedUp(keras.metrics.Metric):
    """The mean error over all examples but those of the first batch."""

    def __init__(self):
        super().__init__(name="warmed_up")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_warm = tf.cast(tf.convert_to_tensor(self.count) >= 1, tf.float32)
        self.total.assign_add(is_warm * tf.reduce_sum(tf.abs(y_true - y_pred)))
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self):
        return self.total / self.count


def test_a_metric_may_read_what_it_has_counted(strategy):
    expected = made(metrics=[WarmedUp()]).evaluate(batches(), verbose=0, return_dict=True)
    with strategy.scope():
        model = made(metrics=[WarmedUp()])
    found = evaluate(model, batches(), verbose=0, return_dict=True)

    assert found["warmed_up"] > 0
    assert found == pytest.approx(expected, rel=1e-5)


def test_losses_of_several_masked_outputs_count_as_in_keras(strategy):
    words = tf.keras.Input((3,), dtype="int32")
    embedded = keras.layers.Embedding(4, 2, mask_zero=True)(words)
    outputs = [keras.layers.Dense(1)(embedded), keras.layers.Dense(1)(keras.layers.LSTM(2)(embedded))]
    x = tf.reshape(tf.range(24) % 4, (8, 3))
    data = tf.data.Dataset.from_tensor_slices((x, (tf.ones((8, 3, 1)), tf.ones((8, 1))))).batch(3)

    def compiled():
        model = keras.models.clone_model(keras.Model(words, outputs))
        model.set_weights(weights)
        model.compile(keras.optimizers.SGD(0.1), ["mse", "mse"])
        return model

    weights = keras.Model(words, outputs).get_weights()
    alone = compiled()
    expected = alone.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    with strategy.scope():
        model = compiled()
    assert fit(model, data, epochs=2, verbose=0).history["loss"] == pytest.approx(expected, rel=1e-5)


def test_calls_callbacks_as_keras_does(strategy, capsys):
    trace, kerass = Trace(), Trace()
    made().evaluate(batches(), callbacks=kerass, verbose=0)
    with strategy.scope():
        model = made()
    evaluate(model, batches(), callbacks=trace, strategy=strategy)

    assert trace.calls == kerass.calls
    assert "4/4" in capsys.readouterr().out  # Keras's progress bar


def test_a_callback_ends_it(strategy):
    with strategy.scope():
        model = made()
    trace = Trace(until=1)
    found = evaluate(model, batches(), callbacks=[trace], verbose=0, strategy=strategy)

    assert [call[0] for call in trace.calls[1:]] == [0, 1, "end"]
    assert found == pytest.approx(made().evaluate(batches().take(2), verbose=0), rel=1e-5)


def test_refuses_what_it_does_not_know(strategy):
    with pytest.raises(ConfigError, match="evaluate: has no argument 'step'"):
        evaluate(made(), batches(), step=3)


def test_refuses_data_without_an_example(strategy):
    with strategy.scope():
        model = made()
    x = tf.zeros((0, 3))
    with pytest.raises(DataError, match=r"^the data: contain no batch"):
        evaluate(model, x, x[:, :1], verbose=0)


@pytest.mark.skipif(keras.__version__.startswith("2."), reason="Keras 2 has another compute_loss")
def test_the_model_is_called_in_its_own_mode_alone(strategy):
    modes = set()

    class Model(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            modes.add(training)
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            self.fourfold.update_state(loss * 4)
            return loss

    with strategy.scope():
        model = Model([keras.Input((3,)), keras.layers.Dense(1)])
        model.fourfold = keras.metrics.Mean(name="fourfold")  # what may be counted in another way
        model.compile("sgd", "mse")
    fit(model, batches(), verbose=0)  # Keras builds a model as for training
    modes.clear()
    logs = evaluate(model, batches(), verbose=0, return_dict=True)

    assert modes == {False}
    assert logs["fourfold"] == pytest.approx(4 * logs["loss"], rel=1e-5)
    modes.clear()
    model.make_train_function(force=True)  # or nothing would call the model again
    fit(model, batches(), verbose=0)
    assert modes == {True}
