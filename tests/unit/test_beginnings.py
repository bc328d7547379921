"""Distributed data sets that are begun again and again: the same elements, and no new functions."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.python.eager import context  # noqa: E402

from tfdist.loop.beginnings import Beginnings  # noqa: E402


def with_slack():
    options = tf.data.Options()
    options.experimental_slack = True
    return tf.data.Dataset.range(7).batch(2).with_options(options)


DATA = {
    "of several types": lambda: (
        tf.data.Dataset.range(7).map(lambda x: {"x": tf.cast([x], tf.float32), "y": tf.as_string(x)}).batch(2)
    ),
    "ragged": lambda: tf.data.Dataset.range(7).map(tf.range).ragged_batch(3),
    "of no known shape": lambda: tf.data.Dataset.range(7).map(lambda x: tf.range(x % 3)).padded_batch(2),
    "with slack": with_slack,
}


@pytest.mark.parametrize("data", DATA)
def test_the_elements_are_those_of_tensorflows_own_iterator(data):
    distributed = tf.distribute.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(DATA[data]())
    beginnings = Beginnings()
    next(beginnings.begin(distributed))  # and is given up half-way
    for _ in range(2):
        assert elements(beginnings.begin(distributed)) == elements(iter(distributed))


def test_functions_are_traced_once():
    data = tf.distribute.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(DATA["with slack"]())
    beginnings = Beginnings()
    elements(beginnings.begin(data))
    known = context.context().list_function_names()
    for _ in range(3):
        elements(beginnings.begin(data))
    assert context.context().list_function_names() == known


def elements(iterator):
    return [
        [leaf.numpy().tolist() for leaf in tf.nest.flatten(each, expand_composites=True)] for each in iterator
    ]
