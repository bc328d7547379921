"""Find the divisors of a replica's losses, so that the replicas' losses make the loss of the whole batch.

Keras 3 does not return them, and divides some losses by the number of replicas too. tfdist therefore replaces
the two functions of Keras that do so while it traces a step. With `reduction=None`, Keras 3 takes the
gradient of the sum of the losses of the examples, and logs their mean.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf

from tfdist._utils.keras_private import losses_reduced_by, mask_weights
from tfdist._utils.methods_within_block import methods_replaced
from tfdist.errors import ConfigError
from tfdist.training.keras.model_checks import has_own
from tfdist.training.replicas.split_into_terms import Term, sum_in, terms_of
from tfdist.training.replicas.sums_and_means_in_graph import (
    has_chosen_rows,
    has_rows,
    is_linear_in,
    is_over_batch,
    reduction_of,
    what_mixes_examples,
)

INEXACT = (
    "loss: returns one number for a batch; several replicas each compute it on their part, and the mean of"
    " these is the loss of the whole batch only if it is a mean over examples. To have it exact, return a"
    " number for each example"
)

MIXED = (
    "loss: that of an example depends on the other examples (operation %s); several replicas each compute it"
    " on their part of the batch, so it is not the loss of one process"
)

DivisorKind: TypeAlias = Literal["count", "mask", "weights", "chosen", "sum", "number", "weighted number"]
# The kinds of divisors that are the number of examples.
OF_EXAMPLES: set[DivisorKind] = {"count", "number", "weighted number"}
_REPLACING = threading.RLock()
_HERE = threading.local()  # each replica is traced in a thread of its own


class LossPart(NamedTuple):
    """The part of a loss that is divided by one divisor; None if it is not divided."""

    loss: tf.Tensor
    weight: tf.Tensor | None


class Divisor(NamedTuple):
    """The divisor of a loss.

    Attributes:
        kind: The kind: "count", "mask", "weights", "chosen" for a mean over chosen values, or "sum" for a
            loss that is not divided. A function that returns one number for a batch has the kind "number" if
            it is unknown how its parts make the whole, and "weighted number" if weights of the examples
            multiply it.
        value: The divisor; None if it is the number of examples, or if there is none.
        loss: The loss.
        mixed_by: The name of an operation by which the losses of examples depend on other examples, if any.
    """

    kind: DivisorKind
    value: tf.Tensor | None
    loss: tf.Tensor
    mixed_by: str = ""


@contextlib.contextmanager
def losses_of_one_process(keras: ModuleType) -> Iterator[None]:
    """Make Keras 3 compute the losses of a replica as in one process, and record their divisors.

    Keras 3 divides its own losses by the number of replicas, in the precision of a float32, but not the
    losses that a model computes itself. For the logs it multiplies all losses by that number.
    """
    called = methods_replaced([(keras.losses.Loss, "__call__", _called)])
    with _REPLACING, losses_reduced_by(keras, functools.partial(_recording, keras)), called:
        yield


def _called(original: Callable[..., Any], _: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a loss, which may call other losses and reduce what they return: its own divisor counts."""
    _HERE.depth = getattr(_HERE, "depth", 0) + 1
    try:
        return original(*args, **kwargs)
    finally:
        _HERE.depth -= 1


@contextlib.contextmanager
def recorded_divisors(
    rows: int | None,
    watch: Callable[[tf.Tensor], None] | None = None,
    share: Callable[[Divisor], tf.Tensor] | None = None,
) -> Iterator[list[Divisor]]:
    """Collect the divisor of each loss that this thread computes, within `losses_of_one_process`.

    Args:
        rows: The number of examples, None in a graph that does not fix it.
        watch: A function to call with each loss before anything else is computed from it.
        share: A function that returns what Keras, and the model, get in place of each loss.
    """
    _HERE.divisors, _HERE.rows, _HERE.watch, _HERE.share = [], rows, watch, share
    _HERE.inner = {}  # the divisors of losses that other losses call, by the ids of the losses
    try:
        yield _HERE.divisors
    finally:
        del _HERE.divisors, _HERE.rows, _HERE.watch, _HERE.share, _HERE.inner


def weight_of(divisors: list[Divisor], size: tf.Tensor, *, replicas: int) -> tuple[tf.Tensor | None, bool]:
    """Return the weight of a sum of losses, None for sums, and whether it is the number of examples."""
    if not have_several_divisors(divisors):
        if divisors and divisors[0].kind == "sum":
            return None, False
        is_of_examples = all(divisor.kind in OF_EXAMPLES for divisor in divisors)
        return (size, True) if is_of_examples else (divisors[0].value, False)
    if replicas == 1:  # the sum has no other part
        return size, True
    problem = "are divided by different numbers, such as what is masked in each, and only their sum is known"
    remedy = "Use reduction='sum' for all, which several replicas can share; or train in one process"
    raise ConfigError("losses", problem, remedy=remedy)


def have_several_divisors(divisors: list[Divisor]) -> bool:
    """Return whether losses are not all divided by the same number."""
    kinds = {divisor.kind for divisor in divisors}
    return len(divisors) > 1 and kinds != {"sum"} and not kinds <= OF_EXAMPLES


class Added(NamedTuple):
    """The losses that layers have added: means over the examples, and sums over them."""

    means: list[tf.Tensor]
    sums: list[tf.Tensor]

    def parts(self, size: tf.Tensor) -> list[LossPart]:
        """Return the parts of a loss that they are."""
        means = [LossPart(tf.add_n(self.means), size)] if self.means else []
        return [*means, *([LossPart(tf.add_n(self.sums), None)] if self.sums else [])]


def added_by_reduction(losses: list[tf.Tensor], rows: int | None) -> Added:
    """Return losses that layers have added; what is neither a mean nor a sum counts as a mean."""
    are_sums = [reduction_of(loss, rows) == "sum" for loss in losses]
    return Added(
        [loss for loss, is_sum in zip(losses, are_sums, strict=True) if not is_sum],
        [loss for loss, is_sum in zip(losses, are_sums, strict=True) if is_sum],
    )


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
    places = []
    for index, (divisor, factor) in enumerate(zip(divisors, factors, strict=True)):
        is_of_examples = divisor.kind in OF_EXAMPLES
        key = "count" if is_of_examples else "sum" if divisor.kind == "sum" else index
        terms.setdefault(key, []).append(tf.cast(divisor.loss * tf.stop_gradient(factor), loss.dtype))
        weights[key] = size if is_of_examples else divisor.value
        places.append(list(terms).index(key))
    for key, values, weight in (("count", added.means, size), ("sum", added.sums, None)):
        if values:
            terms.setdefault(key, []).extend(tf.cast(value, loss.dtype) for value in values)
            weights[key] = weight
    return [LossPart(tf.add_n(terms[key]), weights[key]) for key in terms], places


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
    means = {id(divisor.loss) for divisor in divisors if divisor.kind in OF_EXAMPLES}
    terms = terms_of(loss, rows, means)
    if terms is None:
        return None
    values: dict[Any, list[tf.Tensor]] = {}
    weights: dict[Any, tf.Tensor | None] = {}
    for index, term in enumerate(terms):
        key = index if term.divisor is not None else "sum" if term.kind == "sum" else "count"
        values.setdefault(key, []).append(tf.cast(term.value(), loss.dtype))
        weights[key] = None if key == "sum" else size if key == "count" else sum_in(term.divisor, rows)
    return [LossPart(tf.add_n(values[key]), weights[key]) for key in values]


def check_numbers(divisors: list[Divisor]) -> bool:
    """Check the losses that are one number for a batch, of which each replica has its own.

    Return whether one of them is inexact on several replicas.

    Raises:
        ConfigError: Weights of the examples multiply one number.
    """
    kinds = {divisor.kind for divisor in divisors}
    if "weighted number" in kinds:
        problem = "returns one number for a batch, of which sample weights and class weights weigh no example"
        remedy = "Return a number for each example, as by ops.mean(…, axis=-1)"
        raise ConfigError("loss", problem, remedy=remedy)
    return "number" in kinds


def check_sum(loss: tf.Tensor, divisors: list[Divisor]) -> bool:
    """Check that a model's loss is a sum of losses as Keras has reduced them, such as no root of one.

    Return whether it is another number, which is inexact on several replicas.

    Raises:
        ConfigError: It is another number, of losses that are divided by different numbers.
    """
    if tf.executing_eagerly() or is_linear_in(loss, [divisor.loss for divisor in divisors]):
        return False
    if have_several_divisors(divisors):
        problem = "changes what Keras has reduced over the batch, and others are divided by different numbers"
        raise ConfigError("loss", problem, remedy="Compute it in `call`, which returns one for each example")
    return True


def _recording(keras: ModuleType, reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        quotient = None if reduction in (None, "none") else _quotient(keras, values, sample_weight)
        values = values if quotient is None else quotient.value()  # zero where all is masked
        loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if reduction not in (None, "none") and tuple(loss.shape) == (0,):  # Keras does not reduce no values
            loss = tf.reduce_sum(loss)
        if hasattr(_HERE, "divisors"):
            if quotient is None:
                kind, value = _divisor(keras, values, sample_weight, mask, reduction)
                divisor = Divisor(kind, value, loss, _mixed_by(values))
            else:
                divisor = Divisor("mask", sum_in(quotient.divisor, _HERE.rows), loss)
            if getattr(_HERE, "depth", 0) > 1:
                _HERE.inner[id(loss)] = divisor
                return loss
            _HERE.divisors.append(divisor)
            if _HERE.watch is not None:
                _HERE.watch(loss)
            if _HERE.share is not None:
                return _HERE.share(divisor)
        return loss

    return reduce_weighted_values


def _quotient(keras: ModuleType, number: Any, sample_weight: Any) -> Term | None:
    """Return the only term of one number for a batch, if it is a sum that is divided by that of a mask."""
    if not hasattr(_HERE, "divisors") or keras.ops.ndim(number) or sample_weight is not None:
        return None
    terms = terms_of(number, _HERE.rows, _inner_means()) or ()
    return terms[0] if len(terms) == 1 and terms[0].divisor is not None else None


def _divisor(
    keras: ModuleType, values: Any, sample_weight: Any, mask: Any, reduction: str | None
) -> tuple[DivisorKind, tf.Tensor | None]:
    """Return the kind and the value of what Keras's own function divides by; this repeats its sums."""
    inner = _HERE.inner.get(id(values))
    if inner is not None and not values.shape.rank and sample_weight is None and mask is None:
        return inner.kind, inner.value
    is_number = not keras.ops.ndim(values) and reduction is not None
    if is_number or _is_without_rows(values):
        return _kind_of_number(values, sample_weight, reduction or "none"), None
    if reduction == "sum":
        return "sum", None
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weights = mask_weights(keras, sample_weight, mask, values.dtype, reduction)
        return "weights", tf.reduce_sum(tf.convert_to_tensor(weights))
    if mask is not None and values.shape.rank:
        known = tf.math.count_nonzero(mask, dtype=tf.float64)
        share = tf.math.divide_no_nan(known, tf.cast(tf.size(mask), tf.float64))  # a part may have no example
        return "mask", share * tf.cast(tf.size(values), tf.float64)
    if values.shape.rank and has_chosen_rows(values):
        return "chosen", tf.cast(tf.size(values), tf.float64)
    return "count", None


def _mixed_by(values: Any) -> str:
    """Return the name of an operation that mixes the losses of examples, empty if there is none."""
    is_in_graph = isinstance(values, tf.Tensor) and not tf.executing_eagerly()
    if not is_in_graph or not has_rows(values, _HERE.rows):
        return ""
    operation = what_mixes_examples(values, _HERE.rows)
    return "" if operation is None else operation.name


def _is_without_rows(values: Any) -> bool:
    """Return whether a loss has no row for each example, but one for each class or the like."""
    if tf.executing_eagerly() or not values.shape.rank or values.shape[0] is None:
        return False
    first, rows = values.shape[0], _HERE.rows
    if rows is None:
        return is_over_batch(values)
    return first < rows or bool(first % rows)  # a multiple is that of several numbers for each example


def _kind_of_number(number: Any, sample_weight: Any, reduction: str) -> DivisorKind:
    if sample_weight is not None:
        return "weighted number"
    known = reduction_of(number, _HERE.rows, _inner_means())
    if known is None:
        return "sum" if reduction == "sum" else "number"
    return "sum" if known == "sum" else "count"


def _inner_means() -> set[int]:
    return {key for key, divisor in _HERE.inner.items() if divisor.kind in OF_EXAMPLES}


def check_rank(loss: tf.Tensor, model: Any, *, of_examples: bool) -> None:
    """Raise ConfigError for a loss of which replicas cannot know how its parts make the whole.

    Its loss should be one for each example if `of_examples`, and one number otherwise.
    """
    if loss.shape.rank is None or (loss.shape.rank > 0) == of_examples:
        return
    where = f"compute_loss of {model.name}" if has_own(model, "compute_loss") else "loss"
    if of_examples:
        problem = "has no reduction, but is one number, of which it is unknown whether it is a sum or a mean"
        raise ConfigError(where, problem, remedy="Return one for each example, or set its reduction")
    raise ConfigError(where, "returns one for each example", remedy="Return their mean, one number")


def mean_of(loss: tf.Tensor) -> tf.Tensor:
    """Return the mean of the losses of the examples, zero if there are none; one number is its own mean."""
    if loss.shape.rank == 0:
        return loss
    return tf.math.divide_no_nan(tf.reduce_sum(loss), tf.cast(tf.size(loss), loss.dtype))
