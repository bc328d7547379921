"""Group tensors into buckets, each of which travels by itself while others are computed."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class BucketBytes(NamedTuple):
    """The bytes after which a bucket is full: the first one is small, so that the transfer starts early."""

    first: int = 1 << 20
    others: int = 4 << 20


def plan_buckets(tensors: Sequence[tuple[Any, int]], most: BucketBytes) -> list[list[int]]:
    """Return the positions of the tensors of each bucket.

    Args:
        tensors: The type and bytes of each tensor, in the order in which they travel. A bucket has one type.
        most: The bytes after which a bucket is full.
    """
    buckets: list[list[int]] = []
    size, last_type = 0, None
    for number, (dtype, count) in enumerate(tensors):
        is_full = size >= (most.first if len(buckets) == 1 else most.others)
        if not buckets or is_full or dtype != last_type:
            buckets.append([])
            size = 0
        buckets[-1].append(number)
        size, last_type = size + count, dtype
    return buckets


def plan_from_last(tensors: Sequence[tuple[Any, int]], most: BucketBytes) -> list[list[int]]:
    """Return the same where the last tensor travels first, as the backward pass computes them."""
    last = len(tensors) - 1
    return [[last - number for number in bucket] for bucket in plan_buckets(tensors[::-1], most)]
