"""Add up over the replicas what each has computed on its part of the global batch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import DataError

__all__ = ["batch_size", "shared_mean", "unpacked"]


def unpacked(data: Any) -> tuple[Any, Any, Any]:
    """Take a batch apart into inputs, targets and sample weights, as Keras does."""
    parts = tuple(data) if isinstance(data, (list, tuple)) else (data,)
    if not 1 <= len(parts) <= 3:
        received = f"a {type(data).__name__} of {len(parts)}"
        raise DataError("a batch", expected="x, (x, y) or (x, y, sample_weight)", received=received)
    x, y, sample_weight = (*parts, None, None)[:3]
    return x, y, sample_weight


def batch_size(x: Any) -> tf.Tensor:
    """Count the examples in (a replica's part of) a batch."""
    return tf.shape(next(each for each in tf.nest.flatten(x) if each is not None))[0]


def shared_mean(
    gradients: Sequence[Any],
    state: Sequence[tf.Tensor],
    sums: Sequence[tf.Tensor],
    size: tf.Tensor,
    *,
    share: float | None,
) -> tuple[list[Any], list[tf.Tensor], list[tf.Tensor]]:
    """Average gradients and state over all examples of the global batch, and add sums up.

    Keras gives each replica the mean over its own examples, divided by the number of replicas. Where one has
    fewer than the others, at the end of an epoch, its examples would then weigh more: so each counts by
    its size here.

    Args:
        gradients: What Keras computed on this replica, None where a variable has no part in the loss.
        state: New values of variables that the forward pass updates, such as moving averages.
        sums: What adds up, such as what a metric counted.
        size: How many examples this replica had.
        share: What Keras has multiplied a mean over examples with on each replica; None where the loss is a
            sum over examples, whose gradients are added up as they are.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(gradients), list(state), list(sums)
    known = [each for each in gradients if each is not None]
    if share is not None:
        known = [_scaled(each, tf.cast(size, tf.float64) / share) for each in known]
    # Numbers of 32 bits and counts are exact in a float64. All that is small goes together in one exchange.
    weight = tf.cast(size, tf.float64)
    has_any = tf.cast(size > 0, tf.float64)
    moved = [tf.cast(each, tf.float64) * (weight if each.dtype.is_floating else has_any) for each in state]
    found = _all_summed([*known, *moved, *(tf.cast(each, tf.float64) for each in sums), weight, has_any])
    total, parts = found[-2], tf.maximum(found[-1], 1.0)
    added = found[: len(known)]
    means = iter(added if share is None else [_scaled(each, 1.0 / total) for each in added])
    averaged = [None if each is None else next(means) for each in gradients]
    values = [
        tf.cast(each / (total if old.dtype.is_floating else parts), old.dtype)
        for each, old in zip(found[len(known) :], state, strict=False)
    ]
    return averaged, values, found[len(known) + len(state) : -2]


def _all_summed(values: Sequence[Any]) -> list[Any]:
    # TensorFlow packs what it adds up together, and cannot pack tensors of several types.
    context = tf.distribute.get_replica_context()
    summed = list(values)
    for dtype in dict.fromkeys(each.dtype for each in values):  # in one order on all workers
        places = [place for place, each in enumerate(values) if each.dtype == dtype]
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, [values[place] for place in places])
        for place, each in zip(places, found, strict=True):
            summed[place] = each
    return summed


def _scaled(value: Any, factor: tf.Tensor) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(value.values, factor), value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)
