"""A metric function that returns one number for a batch is named where replicas make its mean another number."""

import logging

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.keras.per_batch_metrics import BatchMeans  # noqa: E402

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


def of_examples(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


@pytest.mark.parametrize(
    ("function", "in_graph", "eagerly"),
    [(absolute, 0, 1), (of_classes, 1, 1), (f1, 1, 1), (of_examples, 0, 0)],
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


def test_one_replica_counts_as_keras_does_and_says_nothing(caplog):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "sigmoid")])
    model.compile("sgd", "mse", metrics=[f1])
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(model, x, (x > 0).astype("float32"), strategy=tf.distribute.get_strategy(), verbose=0)
    assert "one number for a batch" not in caplog.text
