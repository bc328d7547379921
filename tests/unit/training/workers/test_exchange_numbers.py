import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.workers import exchange_numbers  # noqa: E402
from tfdist.training.workers.exchange_numbers import take_from_chief  # noqa: E402

VALUES = [
    tf.constant([2**53 + 1, -(2**63)], tf.int64),
    tf.constant(2**64 - 1, tf.uint64),
    tf.constant([[1 + 2j, 3e38 - 1j]], tf.complex64),
    tf.constant(np.pi + 1e-300j, tf.complex128),
    tf.constant([-0.0, np.nan, np.inf, 1e-45], tf.float32),
    tf.constant([0.1, -3.0], tf.bfloat16),
    tf.constant([], tf.float16),
    tf.constant([[True], [False], [True]]),
    tf.constant([-128, 127], tf.int8),
    7,
]


def _bits(values):
    return [
        (np.shape(value), tf.convert_to_tensor(value).dtype, np.asarray(value).tobytes()) for value in values
    ]


@pytest.mark.parametrize("numbers_at_once", [1, 3, 1 << 20])
def test_values_of_all_types_come_from_the_chief_bit_by_bit(monkeypatch, numbers_at_once):
    monkeypatch.setattr(exchange_numbers, "has_mirrored_workers", lambda _: True)
    monkeypatch.setattr(exchange_numbers, "_NUMBERS_AT_ONCE", numbers_at_once)
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")

    taken = take_from_chief(strategy, VALUES, is_chief=True)
    assert _bits(taken) == _bits(tf.convert_to_tensor(value) for value in VALUES)
    others = take_from_chief(strategy, VALUES, is_chief=False)  # which sends zeros, and here gets them back
    assert _bits(others) == _bits(tf.zeros_like(value) for value in VALUES)
    assert take_from_chief(strategy, [], is_chief=True) == []
