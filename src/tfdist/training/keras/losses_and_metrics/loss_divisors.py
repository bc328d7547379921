"""Record the losses of Keras 3 that a step computes, each with the number that it is divided by.

Keras 3 does not return these divisors, and divides some losses by the number of replicas too. tfdist
therefore replaces the two functions of Keras that do so while it traces a step. With `reduction=None`, Keras
3 takes the gradient of the sum of the losses of the examples, and logs their mean.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf

from tfdist._utils.keras_private import losses_reduced_by, mask_weights
from tfdist._utils.temporary_patches import methods_replaced
from tfdist.training.replicas.graph_queries import has_rows
from tfdist.training.replicas.means_and_sums_in_graph import reduction_of
from tfdist.training.replicas.ops_across_examples import (
    has_chosen_rows,
    is_without_rows,
    what_mixes_examples,
)
from tfdist.training.replicas.split_into_terms import OfSum, Term, of_sum, terms_of

DivisorKind: TypeAlias = Literal["count", "mask", "weights", "chosen", "sum", "number", "weighted number"]
# The kinds of divisors that are the number of examples.
OF_EXAMPLES: set[DivisorKind] = {"count", "number", "weighted number"}
_REPLACING = threading.RLock()
_HERE = threading.local()  # its `recorder`, if any: each replica is traced in a thread of its own


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
        of_sum: How the divisor is computed of a sum; None if the divisors of replicas add up.
    """

    kind: DivisorKind
    value: tf.Tensor | None
    loss: tf.Tensor
    mixed_by: str = ""
    of_sum: OfSum | None = None


def have_several_divisors(divisors: list[Divisor]) -> bool:
    """Return whether losses are not all divided by the same number."""
    kinds = {divisor.kind for divisor in divisors}
    return len(divisors) > 1 and kinds != {"sum"} and not kinds <= OF_EXAMPLES


class _Recorder:
    """The losses that a thread computes, and what Keras, and the model, get in place of each."""

    def __init__(
        self,
        rows: int | None,
        watch: Callable[[tf.Tensor], None] | None,
        share: Callable[[Divisor], tf.Tensor] | None,
    ) -> None:
        self.rows, self._watch, self._share = rows, watch, share
        self.divisors: list[Divisor] = []
        self.inner: dict[int, Divisor] = {}  # of losses that other losses call, by the ids of the losses
        self.depth = 0  # of losses that call losses
        self.mixed_by = ""  # an operation that mixes the examples of a loss that other losses call

    def record(self, divisor: Divisor) -> tf.Tensor:
        """Record a loss, and return what to continue with."""
        loss = divisor.loss
        if self.depth > 1:
            self.inner[id(loss)], self.mixed_by = divisor, divisor.mixed_by
            return loss
        self.divisors.append(divisor)
        if self._watch is not None:
            self._watch(loss)
        return loss if self._share is None else self._share(divisor)

    def inner_means(self) -> set[int]:
        """Return the ids of the losses that are means over the examples, among those that others call."""
        return {key for key, divisor in self.inner.items() if divisor.kind == "count"}


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
    recorder = _recorder()
    if recorder is None:
        return original(*args, **kwargs)
    recorder.depth += 1
    try:
        return original(*args, **kwargs)
    finally:
        recorder.depth -= 1


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
    recorder = _HERE.recorder = _Recorder(rows, watch, share)
    try:
        yield recorder.divisors
    finally:
        del _HERE.recorder


def _recorder() -> _Recorder | None:
    return getattr(_HERE, "recorder", None)


def _recording(keras: ModuleType, reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        recorder, is_reduced = _recorder(), reduction not in (None, "none")
        quotient = None
        if recorder is not None and is_reduced and sample_weight is None:
            quotient = _quotient(keras, values, recorder)
        values = values if quotient is None else quotient.value()  # zero where all is masked
        loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if is_reduced and tuple(loss.shape) == (0,):  # Keras does not reduce no values
            loss = tf.reduce_sum(loss)
        if recorder is None:
            return loss
        if quotient is not None:
            by = quotient.divisor
            return recorder.record(Divisor("mask", by, loss, of_sum=of_sum(by, recorder.rows)))
        mixed_by = _mixed_by(values, recorder.rows) or recorder.mixed_by
        inner = recorder.inner.get(id(values))
        if inner is not None and not values.shape.rank and sample_weight is None and mask is None:
            return recorder.record(Divisor(inner.kind, inner.value, loss, mixed_by, inner.of_sum))
        kind, value = _divisor(keras, values, sample_weight, mask, reduction, recorder)
        return recorder.record(Divisor(kind, value, loss, mixed_by))

    return reduce_weighted_values


def _quotient(keras: ModuleType, number: Any, recorder: _Recorder) -> Term | None:
    """Return the only term of one number for a batch, if it is a sum that is divided by that of a mask."""
    if keras.ops.ndim(number):
        return None
    terms = terms_of(number, recorder.rows, recorder.inner_means()) or ()
    return terms[0] if len(terms) == 1 and terms[0].divisor is not None else None


def _divisor(
    keras: ModuleType, values: Any, sample_weight: Any, mask: Any, reduction: str | None, recorder: _Recorder
) -> tuple[DivisorKind, tf.Tensor | None]:
    """Return the kind and the value of what Keras's own function divides by; this repeats its sums."""
    is_number = not keras.ops.ndim(values) and reduction is not None
    if is_number or is_without_rows(values, recorder.rows):
        return _kind_of_number(values, sample_weight, reduction or "none", recorder), None
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


def _mixed_by(values: Any, rows: int | None) -> str:
    """Return the name of an operation that mixes the losses of examples, empty if there is none."""
    is_in_graph = isinstance(values, tf.Tensor) and not tf.executing_eagerly()
    if not is_in_graph or not has_rows(values, rows):
        return ""
    operation = what_mixes_examples(values, rows)
    return "" if operation is None else operation.name


def _kind_of_number(number: Any, sample_weight: Any, reduction: str, recorder: _Recorder) -> DivisorKind:
    if sample_weight is not None:
        return "weighted number"
    known = reduction_of(number, recorder.rows, recorder.inner_means())
    if known is None:
        return "sum" if reduction == "sum" else "number"
    return "sum" if known == "sum" else "count"
