"""Divide the loss of a replica into parts, each a mean or a sum with a divisor of its own."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.keras.losses_and_metrics.loss_divisors import (
    OF_EXAMPLES,
    Divisor,
    have_several_divisors,
)
from tfdist.training.replicas.detect_paired_examples import depends_on_data
from tfdist.training.replicas.means_and_sums_in_graph import reduction_of
from tfdist.training.replicas.split_into_terms import OfSum, of_sum, terms_of


class LossPart(NamedTuple):
    """The part of a loss that is divided by one divisor.

    Attributes:
        loss: The part.
        weight: The divisor; None if it is not divided.
        of_sum: How the divisor is computed of a sum; None if the divisors of replicas add up.
    """

    loss: tf.Tensor
    weight: tf.Tensor | None
    of_sum: OfSum | None = None


class Added(NamedTuple):
    """The losses that layers have added: means over the examples, and sums over them."""

    means: list[tf.Tensor]
    sums: list[tf.Tensor]

    def parts(self, size: tf.Tensor) -> list[LossPart]:
        """Return the parts of a loss that they are."""
        means = [LossPart(tf.add_n(self.means), size)] if self.means else []
        return [*means, *([LossPart(tf.add_n(self.sums), None)] if self.sums else [])]


def added_by_reduction(losses: list[tf.Tensor], raw: list[tf.Tensor], rows: int | None) -> Added:
    """Return losses that layers have added; what is neither a mean nor a sum counts as a mean.

    `raw` are the losses before Keras adds up those of the examples.
    """
    are_sums = [
        (added.shape.rank and added.shape[0] in (None, rows)) or reduction_of(loss, rows) == "sum"
        for loss, added in zip(losses, raw, strict=True)
    ]
    return Added(
        [loss for loss, is_sum in zip(losses, are_sums, strict=True) if not is_sum],
        [loss for loss, is_sum in zip(losses, are_sums, strict=True) if is_sum],
    )


def has_other_reduction(losses: list[tf.Tensor], rows: int | None) -> bool:
    """Return whether one of several losses of a graph is neither a mean nor a sum over the examples."""
    unknown = [] if tf.executing_eagerly() else [loss for loss in losses if reduction_of(loss, rows) is None]
    return any(map(depends_on_data, unknown))


def as_one_part(
    loss: tf.Tensor, divisors: list[Divisor], size: tf.Tensor, *, replicas: int
) -> tuple[LossPart, bool]:
    """Return a sum of losses as a part with one divisor, and whether that is the number of examples."""
    if not have_several_divisors(divisors):
        if divisors and divisors[0].kind == "sum":
            return LossPart(loss, None), False
        if all(divisor.kind in OF_EXAMPLES for divisor in divisors):
            return LossPart(loss, size), True
        return LossPart(loss, divisors[0].value, divisors[0].of_sum), False
    if replicas == 1:  # the sum has no other part
        return LossPart(loss, size), True
    problem = "are divided by different numbers, such as what is masked in each, and only their sum is known"
    remedy = "Use reduction='sum' for all, which several replicas can share; or train in one process"
    raise ConfigError("losses", problem, remedy=remedy)


def parts_by_divisor(
    loss: tf.Tensor, divisors: list[Divisor], added: Added, size: tf.Tensor, tape: tf.GradientTape
) -> tuple[list[LossPart], list[int]]:
    """Return the parts of a model's loss, and the place among them of the loss of each output.

    Args:
        loss: The sum of the losses of the outputs, each times its weight, and of what is added.
        divisors: The losses of the outputs, with their divisors.
        added: Other losses, which are added to it.
        size: The number of examples, which is the divisor of means.
        tape: It has watched the losses of the outputs, and recorded how the sum was computed.
    """
    factors = tape.gradient(loss, [divisor.loss for divisor in divisors], unconnected_gradients="zero")
    terms: dict[Any, list[tf.Tensor]] = {}
    weights: dict[Any, tf.Tensor | None] = {}
    of_sums: dict[Any, OfSum | None] = {}
    places = []
    for index, (divisor, factor) in enumerate(zip(divisors, factors, strict=True)):
        is_of_examples = divisor.kind in OF_EXAMPLES
        key = "count" if is_of_examples else "sum" if divisor.kind == "sum" else index
        terms.setdefault(key, []).append(tf.cast(divisor.loss * tf.stop_gradient(factor), loss.dtype))
        weights[key], of_sums[key] = size if is_of_examples else divisor.value, divisor.of_sum
        places.append(list(terms).index(key))
    for key, values, weight in (("count", added.means, size), ("sum", added.sums, None)):
        if values:
            terms.setdefault(key, []).extend(tf.cast(value, loss.dtype) for value in values)
            weights[key] = weight
    return [LossPart(tf.add_n(terms[key]), weights[key], of_sums.get(key)) for key in terms], places


def parts_by_reduction(
    loss: tf.Tensor, divisors: list[Divisor], rows: int | None, size: tf.Tensor
) -> list[LossPart] | None:
    """Return the parts of a loss that a model computes by itself; None if nothing shows how.

    Args:
        loss: The loss.
        divisors: The losses of Keras within it.
        rows: The number of examples, None in a graph that does not fix it.
        size: The number of examples.
    """
    means = {id(divisor.loss) for divisor in divisors if divisor.kind == "count"}
    divided = {id(divisor.loss): divisor for divisor in divisors if divisor.value is not None}
    terms = terms_of(loss, rows, means, others=divided)
    if terms is None:
        return None
    values: dict[Any, list[tf.Tensor]] = {}
    weights: dict[Any, tuple[tf.Tensor | None, OfSum | None]] = {}
    for index, term in enumerate(terms):
        divisor = divided.get(id(term.tensor))
        weight = (None, None) if divisor is None else (divisor.value, divisor.of_sum)
        if divisor is None and term.divisor is not None:
            weight = term.divisor, of_sum(term.divisor, rows)
        key = index if weight[0] is not None else "sum" if term.kind == "sum" else "count"
        values.setdefault(key, []).append(tf.cast(term.value(), loss.dtype))
        weights[key] = (size, None) if key == "count" else weight
    return [LossPart(tf.add_n(values[key]), *weights[key]) for key in values]


def with_places(
    parts: list[LossPart], divisors: list[Divisor], size: tf.Tensor
) -> tuple[list[LossPart], list[int]]:
    """Return parts of a loss, and the place of the part that has the divisor of each of several losses.

    There are further parts, which are zero, for the divisors that no part has.
    """
    parts, places = list(parts), []
    for divisor in divisors:
        weight = size if divisor.kind in OF_EXAMPLES else divisor.value
        place = next((place for place, part in enumerate(parts) if part.weight is weight), len(parts))
        if place == len(parts):
            parts.append(LossPart(tf.zeros_like(parts[0].loss), weight, divisor.of_sum))
        places.append(place)
    return parts, places


def mean_of(loss: tf.Tensor) -> tf.Tensor:
    """Return the mean of the losses of the examples, zero if there are none; one number is its own mean."""
    if loss.shape.rank == 0:
        return loss
    return tf.math.divide_no_nan(tf.reduce_sum(loss), tf.cast(tf.size(loss), loss.dtype))
