"""Let a replica that has no examples give zeros for what it would have computed.

TensorFlow hands empty batches to the replicas whose data ended before the others', and the means of nothing
are not numbers.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["computed_or_zero", "if_any"]


def if_any(compute: Callable[[], Any], size: tf.Tensor) -> Any:
    """Compute on this replica's examples; where it has none, give zeros of the same shapes in its place."""
    traced: list[Any] = []

    def flat() -> list[tf.Tensor]:
        traced[:] = [compute()]
        return [
            tf.convert_to_tensor(each)
            for each in tf.nest.flatten(traced[0], expand_composites=True)
            if each is not None
        ]

    def zeros() -> list[tf.Tensor]:
        parts = tf.nest.flatten(traced[0], expand_composites=True)
        return [
            tf.zeros([size or 0 for size in each.shape], each.dtype) for each in parts if each is not None
        ]

    # The true branch is traced first, and shows the false one what to give.
    found = iter(tf.cond(size > 0, flat, zeros))
    parts = tf.nest.flatten(traced[0], expand_composites=True)
    return tf.nest.pack_sequence_as(
        traced[0], [None if each is None else next(found) for each in parts], expand_composites=True
    )


def computed_or_zero(compute: Callable[[], Any], size: tf.Tensor) -> Any:
    """Compute in any case, as where replicas meet meanwhile; take zeros for what comes of no examples."""

    def kept(value: Any) -> Any:
        if value is None or not value.dtype.is_floating:  # or the indices of a sparse gradient
            return value
        return tf.where(size > 0, value, tf.zeros_like(value))  # the mean of nothing is no number

    return tf.nest.map_structure(kept, compute(), expand_composites=True)
