"""Losses without a reduction train, and are logged, as in Keras's own fit: on one device and on two."""

import numpy as np
import pytest

from again import again
from tfdist.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 reduces losses in another way"),
    pytest.mark.usefixtures("in_float64"),
]
OPTIONS = {"batch_size": 4, "verbose": 0}  # of 13 examples: the last batch leaves a replica without any


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


def model_with(*losses, units=1, penalty=None, base=keras.Model, **options):
    keras.utils.set_random_seed(1)
    number = keras.Input((4,))
    dense = [
        keras.layers.Dense(units, kernel_regularizer=penalty, name=f"out{each}")
        for each in range(len(losses))
    ]
    outputs = [layer(number) for layer in dense]
    model = base(number, outputs if len(outputs) > 1 else outputs[0])
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), list(losses) if len(losses) > 1 else losses[0], **options
    )
    return model


def squared(reduction=None):
    return keras.losses.MeanSquaredError(reduction=reduction)


def absolute():
    return keras.losses.MeanAbsoluteError(reduction="none")


class OfValues(keras.losses.Loss):
    """A loss of each value of each example."""

    def call(self, y_true, y_pred):
        return keras.ops.square(y_true - y_pred)


class OneNumber(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean(y_true - y_pred)


def data(outputs, units, *, is_weighted):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(13, 4)), [random.normal(size=(13, units)) for _ in range(outputs)]
    weights = [random.uniform(size=13) for _ in range(outputs)] if is_weighted else [None]
    return x, y if outputs > 1 else y[0], weights if outputs > 1 and is_weighted else weights[0]


@pytest.mark.parametrize(
    ("losses", "units", "is_weighted", "run_eagerly"),
    [
        again([squared], 3, True, False),
        ([squared, absolute], 1, True, False),
        ([squared, absolute], 1, False, True),
        ([lambda: OfValues(reduction=None)], 3, False, False),
    ],
    ids=["one", "two", "eagerly", "of values"],
)
def test_the_numbers_are_those_of_kerass_own_fit(strategy, losses, units, is_weighted, run_eagerly):
    x, y, weights = data(len(losses), units, is_weighted=is_weighted)
    options = {"units": units, "run_eagerly": run_eagerly}
    kerass = model_with(*(make() for make in losses), **options)
    expected = kerass.fit(x, y, sample_weight=weights, epochs=2, shuffle=False, **OPTIONS).history
    with strategy.scope():
        ours = model_with(*(make() for make in losses), **options)
    found = fit(ours, x, y, sample_weight=weights, epochs=2, shuffle=False, **OPTIONS).history
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-12), name
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-12, abs=1e-12)
    tested = kerass.evaluate(x, y, sample_weight=weights, return_dict=True, **OPTIONS)
    assert evaluate(ours, x, y, sample_weight=weights, return_dict=True, **OPTIONS) == pytest.approx(
        tested, rel=1e-12
    )


def test_the_gradients_are_those_of_the_sum_and_the_log_has_the_mean(strategy):
    x, y, _ = data(1, 1, is_weighted=False)
    logged, weights = [], []
    for reduction in (None, "sum"):
        with strategy.scope():
            model = model_with(squared(reduction))
        logged += fit(model, x, y, batch_size=13, epochs=1, verbose=0).history["loss"]
        weights.append(model.get_weights()[0])
    assert weights[0] == pytest.approx(weights[1], rel=1e-12)
    assert logged[0] * 13 == pytest.approx(logged[1], rel=1e-12)


def test_a_penalty_beside_it_is_a_mistake_of_one_line(strategy):
    x, y, _ = data(1, 1, is_weighted=False)
    with strategy.scope():
        model = model_with(squared(), penalty="l2")
    with pytest.raises(ConfigError, match=r"^loss: has no reduction, but regularizers or layers add losses"):
        fit(model, x, y, epochs=1, **OPTIONS)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has nothing to combine")
def test_what_replicas_cannot_combine_is_a_mistake_of_one_line(strategy):
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **_):
            return keras.ops.square(y - y_pred)

    x, y, _ = data(1, 1, is_weighted=False)
    for loss, base, message in (
        (OneNumber(reduction=None), keras.Model, r"^loss: has no reduction, but is one number"),
        ("mse", Own, r"^compute_loss of .*: returns one for each example\. Return their mean"),
        ((squared(), squared("sum")), keras.Model, r"^loss: reduces over the batch by none and sum"),
    ):
        losses = loss if isinstance(loss, tuple) else (loss,)
        with strategy.scope():
            model = model_with(*losses, base=base)
        with pytest.raises(ConfigError, match=message):
            fit(model, x, [y, y] if len(losses) > 1 else y, epochs=1, **OPTIONS)
