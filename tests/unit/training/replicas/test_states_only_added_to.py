"""A graph shows whether a batch only adds to a state."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.replicas.states_only_added_to import adds_one, only_added_to  # noqa: E402


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (lambda a, b: a + 1, lambda a, b: 2 + b, [True, True]),
        (lambda a, b: None, lambda a, b: b - 1, [True, True]),
        (lambda a, b: tf.maximum(a, 1.0), lambda a, b: b + 1, [False, True]),
        (lambda a, b: a + 1, lambda a, b: b + tf.cast(a > 8, tf.float32), [False, False]),
        (lambda a, b: None, lambda a, b: b + a, [False, False]),
        (lambda a, b: b, lambda a, b: b + 1, [False, False]),
    ],
)
def test_a_state_is_a_sum_if_a_batch_only_adds_to_it(one, other, expected):
    with tf.Graph().as_default():
        a, b = (tf.compat.v1.placeholder(tf.float32, ()) for _ in range(2))
        assert only_added_to([(one(a, b), a), (other(a, b), b)]) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a, data: a + 1, True),
        (lambda a, data: tf.identity(tf.ones(()) + a), True),
        (lambda a, data: a + tf.cast(tf.size(data), tf.float32), False),
        (lambda a, data: a + 2, False),
        (lambda a, data: None, False),
        (lambda a, data: a, False),
    ],
)
def test_a_count_of_batches_is_known(change, expected):
    with tf.Graph().as_default():
        a, data = (tf.compat.v1.placeholder(tf.float32, shape) for shape in ((), (None,)))
        assert adds_one(change(a, data), a) is expected
