"""A bucket is full after its bytes, and has tensors of one type."""

import pytest

from tfdist.strategies.plan_buckets import BucketBytes, plan_buckets


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([], []),
        ([("f", 5)], [[0]]),
        ([("f", 5), ("f", 10), ("f", 10), ("f", 50)], [[0, 1], [2, 3]]),
        ([("f", 500), ("f", 500), ("f", 500)], [[0], [1], [2]]),
        ([("f", 1), ("h", 1), ("h", 1), ("f", 1)], [[0], [1, 2], [3]]),
        ([("f", 20)] * 6, [[0], [1, 2, 3, 4, 5]]),
    ],
)
def test_tensors_travel_in_their_order(tensors, expected):
    assert plan_buckets(tensors, BucketBytes(first=12, others=100)) == expected
