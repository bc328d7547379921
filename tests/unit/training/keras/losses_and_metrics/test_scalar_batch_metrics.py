"""A metric function that returns one number for a batch is named where replicas make its mean another number."""

import logging

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.keras.losses_and_metrics.scalar_batch_metrics import BatchMeans  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 counts its metrics by its own step")
ANY_SIZE = tf.TensorSpec([None, 2])


def absolute(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def of_classes(y_true, y_pred):
    return keras.ops.mean(keras.ops.sum(y_true * y_pred, axis=0))


def f1(y_true, y_pred):
    hits = keras.ops.sum(y_true * y_pred)
    return 2 * hits / (keras.ops.sum(y_true) + keras.ops.sum(y_pred) + 1e-7)


def root(y_true, y_pred):
    return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred)))


def r2(y_true, y_pred):
    left = keras.ops.sum(keras.ops.square(y_true - y_pred))
    return 1 - left / keras.ops.sum(keras.ops.square(y_true - keras.ops.mean(y_true)))


def of_examples(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


@pytest.mark.parametrize(
    ("function", "in_graph", "eagerly"),
    [(absolute, 0, 1), (of_classes, 0, 1), (f1, 0, 1), (root, 1, 1), (r2, 1, 1), (of_examples, 0, 0)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_number_that_need_not_be_a_mean_over_the_examples_is_named_once(
    caplog, function, in_graph, eagerly
):
    metric = keras.metrics.MeanMetricWrapper(function, name=function.__name__)

    def named(call):
        means = BatchMeans(keras, without=[])
        caplog.clear()
        for _ in range(2):
            with means.noted(), keras.StatelessScope():
                call(lambda y_true, y_pred: metric.update_state(y_true, y_pred))
        assert all(record.getMessage().startswith(f"metric {metric.name}:") for record in caplog.records)
        return len(caplog.records)

    with caplog.at_level(logging.WARNING, "tfdist"):
        trace = named(
            lambda update: tf.function(update, autograph=False).get_concrete_function(ANY_SIZE, ANY_SIZE)
        )
        call = named(lambda update: update(tf.ones([4, 2]), tf.zeros([4, 2])))
    assert (trace, call) == (in_graph, eagerly)


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


def masked(y_true, y_pred):
    """The share of right answers among the words that are not masked, as tutorials of translation have it."""
    known = tf.cast(y_true[:, 0] > -1, y_pred.dtype)
    right = tf.cast(tf.abs(y_true[:, 0] - y_pred[:, 0]) < 1, y_pred.dtype)
    return tf.reduce_sum(right * known) / tf.maximum(tf.reduce_sum(known), 1)


def mixed(y_true, y_pred):
    return absolute(y_true, y_pred) - 0.5 * of_classes(y_true, y_pred) + 3


def by_keras(y_true, y_pred):
    """Of rows that a loss of Keras has not reduced."""
    return tf.reduce_sum(keras.losses.MeanSquaredError(reduction="none")(y_true, y_pred))


def of_inner(y_true, y_pred):
    known = tf.cast(y_true[:, 0] > -1, y_pred.dtype)
    losses = keras.losses.MeanSquaredError(reduction="none")(y_true, y_pred)
    return tf.reduce_sum(losses * known) / tf.reduce_sum(known)


def hits(y_true, y_pred):
    """A number for each class."""
    return tf.reduce_sum(y_true * tf.round(y_pred), axis=0)


def found(y_true, y_pred):
    """A whole number for each class."""
    return tf.math.count_nonzero(y_pred > y_true - 1, axis=0)


NUMBERS = [hits, found, absolute, of_classes, f1, masked, mixed, by_keras, of_inner]


@pytest.mark.parametrize("loss", [of_inner, by_keras], ids=lambda loss: loss.__name__)
def test_numbers_of_a_batch_are_those_of_keras(loss, caplog):
    def numbers(fit_it, evaluate_it):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=NUMBERS)
        x = np.random.default_rng(0).normal(size=(13, 2)).astype("float32")
        y = np.abs(x) + 1
        y[4:6] = -3  # all of a replica's part of a batch
        options = {"batch_size": 4, "verbose": 0}
        logs = fit_it(model, x, y, epochs=2, shuffle=False, validation_data=(x[:7], y[:7]), **options).history
        tested = evaluate_it(model, x, y, **options)
        return {**logs, "evaluate": tested, "weights": model.get_weights()[0]}

    alone = numbers(keras.Model.fit, keras.Model.evaluate)
    with own_strategy().scope():
        ours = numbers(fit, evaluate)
    for name, value in alone.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-5, err_msg=name)
    assert "one number for a batch" not in caplog.text


class Counting(keras.layers.Layer):
    """A layer whose metrics get sums and means of its inputs."""

    def __init__(self):
        super().__init__()
        self.of_sum, self.total = keras.metrics.Mean("of_sum"), keras.metrics.Sum("total")

    def call(self, x):
        self.of_sum.update_state(tf.reduce_sum(x))
        self.total.update_state(tf.reduce_mean(x))
        return x


class Summed(keras.Model):
    """A model whose loss is a sum, as in the documentation of `compute_loss`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean("tracker")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = tf.reduce_sum(tf.square(y - y_pred))
        self.tracker.update_state(loss)
        return loss


class OwnStep(keras.Model):
    """A model whose step counts a number for each class."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.of_classes, self.total = keras.metrics.Mean("of_classes"), keras.metrics.Sum("total")
        self.of_found, self.whole = keras.metrics.Mean("of_found"), keras.metrics.Sum("whole")

    def train_step(self, data):
        x, y = data
        y_pred = self(x, training=True)
        self.of_classes.update_state(hits(y, y_pred))
        self.total.update_state(hits(y, y_pred))
        self.of_found.update_state(found(y, y_pred))
        self.whole.update_state(found(y, y_pred))
        return {metric.name: metric.result() for metric in self.metrics}


class UnbuiltMetric(keras.Model):
    """A model whose metric makes its variables when it first counts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.f1 = keras.metrics.F1Score(average="macro")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.f1.update_state(tf.cast(y > 0.5, tf.float32), y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.parametrize(
    "base", [keras.Model, Summed, OwnStep, UnbuiltMetric], ids=lambda base: base.__name__
)
def test_metrics_that_layers_and_losses_count_are_those_of_keras(base, caplog):
    def made():
        keras.utils.set_random_seed(1)
        number = keras.Input((2,))
        model = base(number, keras.layers.Dense(2)(Counting()(number)))
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    x = np.random.default_rng(0).normal(size=(13, 2)).astype("float32")
    options = {"batch_size": 4, "verbose": 0, "shuffle": False, "epochs": 2}
    expected = made().fit(x, x + 1, **options).history
    with own_strategy().scope():
        model = made()
    with caplog.at_level(logging.WARNING, "tfdist"):
        found = fit(model, x, x + 1, **options).history
    assert {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()} == found
    assert "one number for a batch" not in caplog.text


def test_one_replica_counts_as_keras_does_and_says_nothing(caplog):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "sigmoid")])
    model.compile("sgd", "mse", metrics=[f1])
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(model, x, (x > 0).astype("float32"), strategy=tf.distribute.get_strategy(), verbose=0)
    assert "one number for a batch" not in caplog.text
