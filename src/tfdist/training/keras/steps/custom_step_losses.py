"""Scale what a custom step computes on one replica, so that the replicas' mean is that of the whole batch.

The mean over the examples of all replicas is right as it is for a loss that is a mean over the examples.
Others are multiplied by a factor: a sum by the number of all examples and those of the replica, and what is
divided by another number, such as that of the words that are not masked, by the shares of both.
"""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.keras.losses_and_metrics.loss_divisors import OF_EXAMPLES, Divisor
from tfdist.training.keras.steps.custom_step_trace_state import ReplicaTrace
from tfdist.training.replicas.empty_replicas import or_zero
from tfdist.training.replicas.reduction import rows_of, shares_of
from tfdist.training.replicas.split_into_terms import of_whole, terms_of


def part_of_loss(divisor: Divisor, replica: ReplicaTrace) -> tf.Tensor:
    """Return a replica's part of a loss of Keras."""
    if divisor.loss.shape.rank:  # the step reduces it
        return divisor.loss
    loss = _part_of_loss(divisor, replica)
    if divisor.kind != "number" or terms_of(loss, rows_of(replica.data), replica.means) is None:
        replica.means[id(loss)] = loss
    return loss


def _part_of_loss(divisor: Divisor, replica: ReplicaTrace) -> tf.Tensor:
    loss = divisor.loss
    if divisor.kind in OF_EXAMPLES or replica.uses is not None:
        return loss
    by = tf.ones([], tf.float64)
    if divisor.value is not None:
        if not replica.is_in_its_graph():
            problem = "is divided by what is masked or weighed, in a branch or a loop"
            raise ConfigError("a loss", problem, remedy="Compute it outside, or use reduction='sum'")
        value, of_sum = or_zero(tf.cast(divisor.value, tf.float64), replica.size), divisor.of_sum
        if of_sum is not None:
            of_sum = of_sum._replace(number=or_zero(of_sum.number, replica.size))
        with replica.updating():
            [by] = shares_of([value], [of_sum])
    factor = tf.math.divide_no_nan(by, replica.share)
    return loss * tf.stop_gradient(tf.cast(factor, loss.dtype))


def part_of_number(number: Any, replica: ReplicaTrace) -> Any:
    """Return a replica's part of a number that the step has computed of its part of the batch."""
    if not tf.is_tensor(number) or number.shape.rank or not number.dtype.is_floating:
        return number
    terms = parts_of_terms(number, replica)
    if terms is None:
        return number
    return tf.cast(tf.add_n([tf.cast(term, tf.float64) * by for term, by in terms]), number.dtype)


def parts_of_terms(number: Any, replica: ReplicaTrace) -> list[tuple[tf.Tensor, tf.Tensor]] | None:
    """Return the terms of a number, each with the factor by which it is a replica's part.

    Return None if nothing shows how the number is computed.
    """
    rows = rows_of(replica.data)
    terms = terms_of(number, rows, replica.means)
    is_divided = any(term.divisor is not None for term in terms or ())
    if terms is None or (is_divided and not replica.is_in_its_graph()):
        return None

    def add_up(value: tf.Tensor) -> tf.Tensor:
        value = or_zero(tf.cast(value, tf.float64), replica.size)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

    found = []
    for term in terms:
        factor = tf.constant(term.factor, tf.float64)
        if term.kind == "sum":
            factor = tf.math.divide_no_nan(factor, tf.cast(replica.share, tf.float64))
        if term.divisor is not None and replica.uses is None:
            with replica.updating():
                divisor = of_whole(term.divisor, rows, add_up)
            factor = tf.math.divide_no_nan(factor, tf.cast(divisor, tf.float64))
        found.append((term.tensor, factor))
    return found
