"""Evaluating returns, calls and counts what Keras's own evaluate does."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

from tfdist.errors import ConfigError, DataError

tf = pytest.importorskip("tensorflow")

from training_helpers import Trace, batches  # noqa: E402

from tfdist.training.evaluate import evaluate  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.fit import fit  # noqa: E402

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
