"""Add up over the replicas what each has computed on its part of the global batch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.errors import DataError

__all__ = ["AddUp", "Shared", "batch_size", "shared_mean", "summed_apart", "unpacked"]

# Adds gradients up over the replicas, each times this replica's share; None stays None.
AddUp = Callable[[Sequence[Any], tf.Tensor], list[Any]]


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


class Shared(NamedTuple):
    """Hold what all replicas have together: the same on each of them."""

    gradients: list[Any]
    state: list[tf.Tensor]
    sums: list[tf.Tensor]
    size: tf.Tensor
    weight: tf.Tensor


def shared_mean(
    gradients: Sequence[Any],
    state: Sequence[tf.Tensor],
    sums: Sequence[tf.Tensor],
    *,
    size: tf.Tensor,
    weight: tf.Tensor | None,
    added: Sequence[Any] = (),
    add_up: AddUp | None = None,
) -> Shared:
    """Average gradients and state over the global batch, and add sums up.

    The mean that a replica computes is over its own examples. Where one has fewer than the others, at the
    end of an epoch, its examples would weigh more in a mean of such means: so each mean counts by what it
    was divided by.

    Args:
        gradients: What this replica computed, None where a variable has no part in the loss.
        state: New values of variables that the forward pass updates, such as moving averages.
        sums: What adds up, such as what a metric counted.
        size: How many examples this replica had.
        weight: What the loss was divided by; None where it is a sum, whose gradients add up as they are.
        added: Gradients of losses that count by examples where the loss itself does not.
        add_up: How gradients are added up; over the strategy's ring, if any, or by TensorFlow where None.
    """
    context = tf.distribute.get_replica_context()
    size = tf.cast(size, tf.float64)
    one = tf.constant(1.0, tf.float64)
    by = one if weight is None else tf.cast(weight, tf.float64)
    if context.num_replicas_in_sync == 1:
        both = _added_up(gradients, one, added, one) if added else list(gradients)
        return Shared(both, list(state), list(sums), size, by)
    if added:  # what is divided by two numbers can be added up only when both are known
        sizes, weights = context.all_reduce(tf.distribute.ReduceOp.SUM, [size, by])
        share = one if weight is None else tf.math.divide_no_nan(by, weights)
        gradients = _added_up(gradients, share, added, tf.math.divide_no_nan(size, sizes))
    is_mean = weight is not None and not added
    known = [each for each in gradients if each is not None]
    # Numbers of 32 bits and counts are exact in a float64. All that is small goes together in one exchange.
    has_any = tf.cast(size > 0, tf.float64)
    moved = [tf.cast(each, tf.float64) * (size if each.dtype.is_floating else has_any) for each in state]
    numbers = [*moved, *(tf.cast(each, tf.float64) for each in sums), size, by, has_any]
    if add_up is None and getattr(context.strategy, "ring", None) is not None:
        add_up = _summed_over_ring
    if add_up is None:
        found = _all_summed([*(_scaled(each, by) if is_mean else each for each in known), *numbers])
        sums, found = found[: len(known)], found[len(known) :]
        summed = [_scaled(each, _inverse(found[-2])) for each in sums] if is_mean else sums
    else:
        # What is small first: then each gradient is scaled as it leaves, and not again.
        found = _summed_as_one(numbers)
        share = tf.math.divide_no_nan(by, found[-2]) if is_mean else one
        summed = [each for each in add_up(gradients, share) if each is not None]
    total, weights, parts = found[-3], found[-2], tf.maximum(found[-1], 1.0)
    means = iter(summed)
    values = [
        tf.cast(each / (total if old.dtype.is_floating else parts), old.dtype)
        for each, old in zip(found, state, strict=False)
    ]
    return Shared(
        [None if each is None else next(means) for each in gradients],
        values,
        found[len(state) : -3],
        total,
        one if weight is None else weights,
    )


def _summed_over_ring(gradients: Sequence[Any], share: tf.Tensor) -> list[Any]:
    """Add gradients up over the strategy's ring, each times this replica's share."""
    context = tf.distribute.get_replica_context()

    def add_up(strategy: Any, values: Any, share: Any) -> Any:
        return strategy.add_gradients_up(values, share)

    return summed_apart(
        gradients,
        share,
        lambda each: not isinstance(each, tf.IndexedSlices),
        lambda dense: context.merge_call(add_up, args=(dense, share)),
    )


def summed_apart(
    gradients: Sequence[Any],
    share: tf.Tensor,
    is_apart: Callable[[Any], bool],
    add_up: Callable[[Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """Add some gradients up in a way of their own, and the others, such as sparse ones, by TensorFlow."""
    apart = [each for each in gradients if each is not None and is_apart(each)]
    others = [_scaled(each, share) for each in gradients if each is not None and not is_apart(each)]
    found = iter(add_up(apart) if apart else ())
    found_others = iter(_all_summed(others))
    return [None if each is None else next(found if is_apart(each) else found_others) for each in gradients]


def _added_up(
    gradients: Sequence[Any], factor: tf.Tensor, others: Sequence[Any], other_factor: tf.Tensor
) -> list[Any]:
    def both(one: Any, other: Any) -> Any:
        parts = [(one, factor), (other, other_factor)]
        known = [_scaled(value, by) for value, by in parts if value is not None]
        if len(known) == 2:
            return tf.convert_to_tensor(known[0]) + tf.convert_to_tensor(known[1])
        return known[0] if known else None

    return [both(*pair) for pair in zip(gradients, others, strict=True)]


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


def _summed_as_one(numbers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Add up numbers of one type, which TensorFlow would send one by one to a parameter server."""
    if not all(each.shape.is_fully_defined() for each in numbers):
        return _all_summed(numbers)
    [found] = _all_summed([tf.concat([tf.reshape(each, [-1]) for each in numbers], axis=0)])
    parts = tf.split(found, [each.shape.num_elements() for each in numbers])
    return [tf.reshape(part, each.shape) for part, each in zip(parts, numbers, strict=True)]


def _inverse(weights: tf.Tensor) -> tf.Tensor:
    # As Keras does, where all is masked: a mean over nothing is zero.
    return tf.math.divide_no_nan(tf.constant(1.0, tf.float64), weights)


def _scaled(value: Any, factor: tf.Tensor) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(value.values, factor), value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)
