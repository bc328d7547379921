"""Add up over the replicas what each has computed on its part of the global batch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.indices_by_key import indices_by_key
from tfdist._utils.tf_private import cross_device_ops_of
from tfdist.errors import DataError
from tfdist.strategies.gradient_arithmetic import scaled
from tfdist.strategies.strategy_classes import ring_of
from tfdist.training.replicas.sparse_gradients import summed
from tfdist.training.replicas.split_into_terms import OfSum

# Adds gradients up over the replicas, each scaled by this replica's share; None stays None.
AddUp = Callable[[Sequence[Any], tf.Tensor], list[Any]]


def unpacked(data: Any) -> tuple[Any, Any, Any]:
    """Return the inputs, targets and sample weights of a batch, as Keras unpacks it."""
    parts = tuple(data) if isinstance(data, (list, tuple)) else (data,)
    if not 1 <= len(parts) <= 3:
        received = f"a {type(data).__name__} of {len(parts)}"
        raise DataError("a batch", expected="x, (x, y) or (x, y, sample_weight)", received=received)
    x, y, sample_weight = (*parts, None, None)[:3]
    return x, y, sample_weight


def batch_size(x: Any) -> tf.Tensor:
    """Return the number of examples in a batch, or in a replica's part of it."""
    first = next(part for part in tf.nest.flatten(x) if part is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    if first.shape.rank == 0:
        expected, remedy = "a row for each example in each tensor", "Repeat it for each example (tf.repeat)"
        raise DataError("a batch", expected=expected, received="a number without rows", remedy=remedy)
    return tf.shape(first)[0]


def rows_of(x: Any) -> int | None:
    """Return the number of examples in a batch, None if its graph does not fix it."""
    first = next(part for part in tf.nest.flatten(x) if part is not None)
    return first.shape[0] if first.shape.rank else None


def without_fixed_size(data: Any, replicas: int) -> Any:
    """Return a batch, or a part of so many replicas, of which a graph does not fix the number of examples.

    One replica keeps its size. Where a graph of several fixes it, as for endless data with
    `drop_remainder=True`, TensorFlow makes the size a constant, and nothing shows whether a sum that is
    divided by a constant is a mean over the examples.
    """
    if replicas == 1 or tf.executing_eagerly():
        return data
    return tf.nest.map_structure(_without_fixed_size, data)


def _without_fixed_size(part: Any) -> Any:
    if isinstance(part, tf.RaggedTensor) and part.uniform_row_length is None:
        rows, splits = _without_fixed_size(part.values), _without_fixed_size(part.row_splits)
        return tf.RaggedTensor.from_row_splits(rows, splits, validate=False)
    if not isinstance(part, tf.Tensor) or not part.shape.rank or part.shape[0] is None:
        return part
    return tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]])


class OfLoss(NamedTuple):
    """A replica's gradients of one loss, None for a variable that has no part in it, and the loss's divisor.

    Attributes:
        gradients: The gradients.
        weight: The divisor; None for a sum, whose gradients are added up unweighted.
        are_shared: Whether the gradients are those of the loss times the replica's share of its divisor.
        of_sum: How the divisor is computed of a sum; None if the divisors of the replicas add up.
    """

    gradients: Sequence[Any]
    weight: tf.Tensor | None
    are_shared: bool = False
    of_sum: OfSum | None = None

    def total(self, added_up: tf.Tensor) -> tf.Tensor:
        """Return the divisor of the whole batch, of what all replicas have added up for it."""
        return added_up if self.of_sum is None else tf.cast(self.of_sum.whole(added_up), tf.float64)


class Shared(NamedTuple):
    """The results of a reduction over all replicas, the same on each of them.

    Attributes:
        gradients: The sums of the gradients of all losses.
        state: The variables that the forward pass updates.
        sums: The values that are added up.
        size: The number of examples.
        weights: The divisor of each loss, 1 for a sum.
        replicas: The number of replicas with examples.
    """

    gradients: list[Any]
    state: list[tf.Tensor]
    sums: list[tf.Tensor]
    size: tf.Tensor
    weights: list[tf.Tensor]
    replicas: tf.Tensor


class _Numbers(NamedTuple):
    """The small values that all replicas add up in one exchange.

    They are floats of 64 bits, which hold counts and numbers of 32 bits exactly.

    Attributes:
        state: The variables that the forward pass updates, times what they are means over.
        sums: The values that are added up.
        size: The number of examples.
        weights: The divisor of each loss, or the sum of which it is computed; 1 for a sum.
        replicas: The number of replicas with examples.
    """

    state: list[tf.Tensor]
    sums: list[tf.Tensor]
    size: tf.Tensor
    weights: list[tf.Tensor]
    replicas: tf.Tensor


def shares_of(
    weights: Sequence[tf.Tensor | None], of_sums: Sequence[OfSum | None] | None = None
) -> list[tf.Tensor]:
    """Return a replica's share of each divisor of a loss, of all replicas together; one for a sum.

    `of_sums` are how divisors are computed of sums, where those of the replicas do not add up.
    """
    losses = [
        OfLoss((), tf.cast(weight, tf.float64), of_sum=of_sum)
        for weight, of_sum in zip(weights, of_sums or [None] * len(weights), strict=True)
        if weight is not None
    ]
    context = tf.distribute.get_replica_context()
    added = [_to_add_up(loss) for loss in losses]
    totals = context.all_reduce(tf.distribute.ReduceOp.SUM, added) if added else []
    shares = iter(
        tf.math.divide_no_nan(loss.weight, loss.total(total))
        for loss, total in zip(losses, totals, strict=True)
    )
    return [tf.ones([], tf.float64) if weight is None else next(shares) for weight in weights]


def _to_add_up(loss: OfLoss) -> tf.Tensor:
    """Return what the replicas add up for the divisor of a loss, 1 for a sum."""
    number = loss.weight if loss.of_sum is None else loss.of_sum.number
    return tf.constant(1.0, tf.float64) if number is None else tf.cast(number, tf.float64)


def shared_mean(
    losses: Sequence[OfLoss],
    state: Sequence[tf.Tensor],
    sums: Sequence[tf.Tensor],
    *,
    size: tf.Tensor,
    add_up: AddUp | None = None,
) -> Shared:
    """Average gradients and state over the global batch, and add sums up.

    A replica computes means over its own examples. At the end of an epoch, a replica may have fewer examples
    than the others, and its examples would weigh more in a mean of means. So each mean is weighted by its
    divisor.

    Args:
        losses: This replica's gradients of each loss that has a divisor of its own, in the forms of
            `addends`.
        state: New values of variables that the forward pass updates, such as moving averages.
        sums: Values to add up, such as the counts of a metric.
        size: The number of this replica's examples.
        add_up: A function that adds gradients up. If None, the strategy's ring does, if any, or TensorFlow.
    """
    context = tf.distribute.get_replica_context()
    size = tf.cast(size, tf.float64)
    one = tf.constant(1.0, tf.float64)
    weights = [one if loss.weight is None else tf.cast(loss.weight, tf.float64) for loss in losses]
    if context.num_replicas_in_sync == 1:
        [gradients] = [loss.gradients for loss in losses] or [[]]
        return Shared(list(gradients), list(state), list(sums), size, weights, one)
    gradients, weight = _of_all_losses(losses, weights)
    has_any = tf.cast(size > 0, tf.float64)
    to_add_up = list(map(_to_add_up, losses))
    moved = [tf.cast(value, tf.float64) * (size if value.dtype.is_floating else has_any) for value in state]
    numbers = _Numbers(moved, [tf.cast(value, tf.float64) for value in sums], size, to_add_up, has_any)
    if add_up is not None:
        gradients, reduced = _reduced_by(add_up, gradients, numbers, weight)
    elif ring_of(context.strategy) is not None:
        gradients, reduced = _reduced_over_ring(gradients, numbers, weight)
    else:
        gradients, reduced = _reduced_by_tensorflow(gradients, numbers, weight)
    replicas = tf.maximum(reduced.replicas, 1.0)
    # A generator that only some replicas have drawn from, as in a branch, moves all the same.
    values = [
        value / reduced.size if old.dtype.is_floating else tf.math.ceil(value / replicas)
        for value, old in zip(reduced.state, state, strict=True)
    ]
    values = [tf.cast(value, old.dtype) for value, old in zip(values, state, strict=True)]
    weights = [
        one if loss.weight is None else loss.total(added_up)
        for loss, added_up in zip(losses, reduced.weights, strict=True)
    ]
    return Shared(gradients, values, reduced.sums, reduced.size, weights, replicas)


def _of_all_losses(
    losses: Sequence[OfLoss], weights: Sequence[tf.Tensor]
) -> tuple[list[Any], tf.Tensor | None]:
    """Return this replica's gradients of all losses; and their weight in a mean, None for a sum."""
    are_shared = any(loss.are_shared for loss in losses)
    if (len(losses) > 1 or any(loss.of_sum for loss in losses)) and losses[0].gradients:
        # Gradients can be added up only after all divisors are known.
        one = tf.constant(1.0, tf.float64)
        weights, of_sums = [loss.weight for loss in losses], [loss.of_sum for loss in losses]
        shares = [one for _ in losses] if are_shared else shares_of(weights, of_sums)
        of_variables = zip(*(loss.gradients for loss in losses), strict=True)
        return [summed(gradients, shares) for gradients in of_variables], None
    is_mean = len(losses) == 1 and losses[0].weight is not None and not are_shared
    return [gradient for loss in losses for gradient in loss.gradients], weights[0] if is_mean else None


# -- the ways to exchange gradients and numbers: each returns the sums of gradients, or their means by the
# total of a weight, and the sums of numbers --


def _reduced_by(
    add_up: AddUp, gradients: Sequence[Any], numbers: _Numbers, weight: tf.Tensor | None
) -> tuple[list[Any], _Numbers]:
    # Small values first: they give the share by which each gradient is scaled once, when it is sent.
    reduced = _summed_as_one(numbers)
    return add_up(gradients, _share(weight, reduced)), reduced


def _reduced_over_ring(
    gradients: Sequence[Any], numbers: _Numbers, weight: tf.Tensor | None
) -> tuple[list[Any], _Numbers]:
    # Dense gradients leave first, while others are still computed.
    dense = _summed_over_ring(gradients, weight)
    reduced = _summed_as_one(numbers)
    share = _share(weight, reduced)
    sparse = iter(_all_summed([scaled(gradient, share) for gradient in gradients if _is_sparse(gradient)]))
    sums = [
        None if gradient is None else next(sparse if _is_sparse(gradient) else dense)
        for gradient in gradients
    ]
    return sums, reduced


def _reduced_by_tensorflow(
    gradients: Sequence[Any], numbers: _Numbers, weight: tf.Tensor | None
) -> tuple[list[Any], _Numbers]:
    known = [gradient for gradient in gradients if gradient is not None]
    mine = known if weight is None else [scaled(gradient, weight) for gradient in known]
    totals = _all_summed([*mine, *tf.nest.flatten(numbers)])
    sums, reduced = totals[: len(mine)], tf.nest.pack_sequence_as(numbers, totals[len(mine) :])
    if weight is not None:
        # As in Keras, a mean is zero if everything is masked.
        inverse = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), reduced.weights[0])
        sums = [scaled(gradient, inverse) for gradient in sums]
    rest = iter(sums)
    return [None if gradient is None else next(rest) for gradient in gradients], reduced


def _share(weight: tf.Tensor | None, reduced: _Numbers) -> tf.Tensor:
    """Return this replica's share of a mean by a weight; one for a sum."""
    if weight is None:
        return tf.constant(1.0, tf.float64)
    return tf.math.divide_no_nan(weight, reduced.weights[0])


def _summed_over_ring(gradients: Sequence[Any], weight: tf.Tensor | None) -> Iterator[Any]:
    """Return the sums of dense gradients over the ring, or their means by a weight."""
    dense = [gradient for gradient in gradients if gradient is not None and not _is_sparse(gradient)]

    def add_up(strategy: Any, values: Any, factor: Any) -> Any:
        return cross_device_ops_of(strategy).weighted_sums(values, factor, is_mean=weight is not None)

    factor = tf.constant(1.0, tf.float64) if weight is None else weight
    return iter(tf.distribute.get_replica_context().merge_call(add_up, args=(dense, factor)) if dense else ())


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def summed_apart(
    gradients: Sequence[Any],
    share: tf.Tensor,
    is_apart: Callable[[Any], bool],
    add_up: Callable[[Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """Add up some gradients with `add_up`, and the others, such as sparse ones, with TensorFlow."""
    apart = [gradient for gradient in gradients if gradient is not None and is_apart(gradient)]
    others = [
        scaled(gradient, share) for gradient in gradients if gradient is not None and not is_apart(gradient)
    ]
    sums_apart = iter(add_up(apart) if apart else ())
    other_sums = iter(_all_summed(others))
    return [
        None if gradient is None else next(sums_apart if is_apart(gradient) else other_sums)
        for gradient in gradients
    ]


def _all_summed(values: Sequence[Any]) -> list[Any]:
    # TensorFlow packs the tensors of one all-reduce, and a pack does not support several types.
    context = tf.distribute.get_replica_context()
    summed = list(values)
    for places in indices_by_key(value.dtype for value in values).values():
        totals = context.all_reduce(tf.distribute.ReduceOp.SUM, [values[place] for place in places])
        for place, total in zip(places, totals, strict=True):
            summed[place] = total
    return summed


def _summed_as_one(numbers: _Numbers) -> _Numbers:
    """Add up numbers as one tensor: TensorFlow would send each alone to a parameter server."""
    flat = tf.nest.flatten(numbers)
    if all(number.shape.is_fully_defined() for number in flat):
        [total] = _all_summed([tf.concat([tf.reshape(number, [-1]) for number in flat], axis=0)])
        parts = tf.split(total, [number.shape.num_elements() for number in flat])
        sums = [tf.reshape(part, number.shape) for part, number in zip(parts, flat, strict=True)]
    else:
        sums = _all_summed(flat)
    return tf.nest.pack_sequence_as(numbers, sums)  # type: ignore[no-any-return]
