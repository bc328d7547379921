from typing import NamedTuple

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.runners.graphs_for_workers import PackedResults  # noqa: E402


class Both(NamedTuple):
    first: object
    second: object


def packed(results, result):
    """Return what a chief fetches of a graph with this result."""
    return tf.function(lambda: results.packed(result()), autograph=False)()


def test_all_numbers_travel_in_one_tensor_and_come_as_they_were():
    results = PackedResults()

    def result():
        table = tf.reshape(tf.range(6, dtype=tf.float64), [2, 3]) / 3
        return (
            tf.constant(7),
            Both({"a": table}, [tf.constant(0.1), tf.zeros([0])]),
            tf.constant(1e300, tf.float64),
        )

    vector, others = packed(results, result)
    assert vector.shape == [1 + 1 + 6 + 1 + 1]
    assert others == []
    came = results.unpacked((vector, others))
    tf.nest.assert_same_structure(came, result())
    for there, here in zip(tf.nest.flatten(came), tf.nest.flatten(result()), strict=True):
        assert isinstance(there, np.ndarray)
        assert there.dtype == here.dtype.as_numpy_dtype
        np.testing.assert_array_equal(there, here)


def test_what_64_bits_do_not_hold_or_what_is_large_travels_as_it_is():
    results = PackedResults()

    def result():
        ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
        return {
            "count": tf.constant(2**62 + 1, tf.int64),
            "large": tf.ones([2000]),
            "nothing": None,
            "ragged": ragged,
            "text": tf.constant("text"),
            "value": tf.constant(0.5),
        }

    vector, others = packed(results, result)
    assert vector.shape == [2]
    came = results.unpacked((vector, others))
    assert int(came["count"]) == 2**62 + 1
    assert came["large"].shape == [2000]
    assert came["nothing"] is None
    assert came["ragged"].to_list() == [[1.0], [2.0, 3.0]]
    assert came["text"].numpy() == b"text"
    assert came["value"] == np.float32(0.5)


def test_each_trace_is_read_in_its_own_way_whichever_came_last():
    results = PackedResults()
    graph = tf.function(lambda values: results.packed((tf.constant(3), values)), autograph=False)
    known, unknown = tf.TensorSpec([2]), tf.TensorSpec([None])
    fixed, free = graph.get_concrete_function(known), graph.get_concrete_function(unknown)
    for trace in (fixed, free, fixed):
        ran, values = results.unpacked(trace(tf.constant([1.0, 2.0])))
        assert ran == 3
        np.testing.assert_array_equal(values, [1.0, 2.0])
    assert len(fixed(tf.zeros([2]))[1]) == 0
    assert len(free(tf.zeros([2]))[1]) == 1
