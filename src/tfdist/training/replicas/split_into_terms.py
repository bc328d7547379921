"""Find the terms of a number that a step computes of its part of a batch, and how the parts make the whole.

A step of a user's own may train by a mean over the examples, a sum over them, or a sum that is divided by
another one, such as the number of words that are not masked; and by several of these.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.operations_behind import operations_behind
from tfdist.training.replicas.graph_queries import has_rows, passed_on
from tfdist.training.replicas.means_and_sums_in_graph import Reduction, reduction_of, summands

_PASSES_ON = ("Identity", "EnsureShape", "Snapshot")
_PRODUCTS = ("Mul", "RealDiv", "DivNoNan")


class Term(NamedTuple):
    """A term of a number, times a factor.

    Attributes:
        tensor: The term, one number or one for each example, which then counts as their sum.
        kind: "mean" over the examples, "sum", or "same" without regard to them.
        factor: What multiplies it.
        divisor: What divides it too, which is computed of a sum over the examples; None if nothing does.
    """

    tensor: tf.Tensor
    kind: Reduction
    factor: float = 1.0
    divisor: tf.Tensor | None = None

    def value(self) -> tf.Tensor:
        """Return the term times its factor, zero where the divisor is."""
        number = self.tensor if self.divisor is None else tf.math.divide_no_nan(self.tensor, self.divisor)
        return number * tf.constant(self.factor, number.dtype)  # (tf.cast would round it to 32 bits)


class OfSum(NamedTuple):
    """How a divisor, such as a sum and one more, is computed of a sum over the examples.

    Attributes:
        number: The sum over the examples of a replica.
        whole: Returns the divisor of the whole batch, of the sum over all its examples.
    """

    number: tf.Tensor
    whole: Callable[[tf.Tensor], tf.Tensor]


def terms_of(
    number: Any,
    rows: int | None,
    means: Collection[int] = (),
    *,
    is_trained: bool = True,
    others: Collection[int] = (),
) -> list[Term] | None:
    """Return the terms of what a step computes, None if it is unknown how its parts make the whole.

    Args:
        number: One number, or one for each example, of which a gradient tape takes the sum.
        rows: The number of examples, None in a graph that does not fix it.
        means: The ids of tensors that are known to be means over the examples.
        is_trained: Whether gradients of the number are taken: then a divisor that depends on weights, whose
            gradients would be missing, is none.
        others: The ids of tensors that are terms of another kind, which the caller knows; here they are sums.
    """
    if not tf.is_tensor(number):
        return None
    if number.shape.rank:
        return [Term(number, "sum")] if has_rows(number, rows) else None
    return None if tf.executing_eagerly() else _Splitter(rows, means, is_trained, others).terms(number, 1.0)


class _Splitter(NamedTuple):
    """Split what a step computes into terms; the attributes are arguments of `terms_of`."""

    rows: int | None
    means: Collection[int]
    is_trained: bool
    others: Collection[int]

    def terms(self, number: tf.Tensor, factor: float) -> list[Term] | None:
        """Return the terms of a number times a factor."""
        if id(number) in self.others:
            return [Term(number, "sum", factor)]
        reduction = reduction_of(number, self.rows, self.means)
        if reduction is not None:
            return [Term(number, reduction, factor)]
        operation = number.op
        inputs, kind = list(operation.inputs), operation.type
        if kind in _PASSES_ON or (
            kind == "Cast" and number.dtype.is_floating and inputs[0].dtype.is_floating
        ):
            return self.terms(inputs[0], factor)
        if kind in ("Mean", "Sum") and inputs[0].shape.rank == 0:
            return self.terms(inputs[0], factor)
        if kind == "Neg":
            return self.terms(inputs[0], -factor)
        added = summands(operation)
        if added and not any(summand.shape.rank for summand in added):
            factors = [factor, -factor if kind == "Sub" else factor, *(factor for _ in added[2:])]
            found = [self.terms(summand, by) for summand, by in zip(added, factors, strict=False)]
            return None if None in found else [term for terms in found for term in terms or ()]
        return self._terms_of_product(operation, factor) if kind in _PRODUCTS else None

    def _terms_of_product(self, operation: tf.Operation, factor: float) -> list[Term] | None:
        """Return the terms of a product or a quotient of a number and a constant, or of two sums."""
        (first, second), is_product = operation.inputs, operation.type == "Mul"
        if constant := _constant(second):
            return self.terms(first, factor * constant if is_product else factor / constant)
        if is_product:
            constant = _constant(first)
            return None if constant is None else self.terms(second, factor * constant)
        is_quotient = reduction_of(first, self.rows, self.means) == "sum" and self._is_divisor(second)
        return [Term(first, "sum", factor, second)] if is_quotient else None

    def _is_divisor(self, number: tf.Tensor) -> bool:
        """Return whether a number is computed of a sum over the examples, by what `of_whole` knows."""
        if reduction_of(number, self.rows) == "sum":
            behind = operations_behind([number], until=_is_of_shape) if self.is_trained else []
            return not any(tensor.dtype == tf.resource for operation in behind for tensor in operation.inputs)
        operation = number.op
        if operation.type in (*_PASSES_ON, "Cast"):
            return self._is_divisor(operation.inputs[0])
        if operation.type in ("Add", "AddV2", "Maximum"):
            first, second = operation.inputs
            return _constant(second) is not None and self._is_divisor(first)
        return False


def _is_of_shape(operation: tf.Operation) -> bool:
    return operation.type in ("Shape", "Size")


def _constant(tensor: tf.Tensor) -> float | None:
    value = None if tensor.shape.rank else tf.get_static_value(passed_on(tensor, (*_PASSES_ON, "Cast")))
    return None if value is None else float(value)


def sum_in(divisor: tf.Tensor, rows: int | None) -> tf.Tensor:
    """Return the sum over the examples of which a divisor is computed."""
    while reduction_of(divisor, rows) != "sum":
        divisor = divisor.op.inputs[0]
    return divisor


def of_sum(divisor: tf.Tensor, rows: int | None) -> OfSum | None:
    """Return how a divisor is computed of a sum over the examples, None if it is that sum."""
    number = sum_in(divisor, rows)
    return (
        None if number is divisor else OfSum(number, lambda total: of_whole(divisor, rows, lambda _: total))
    )


def of_whole(divisor: tf.Tensor, rows: int | None, add_up: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Return the divisor of the whole batch; `add_up` adds a sum up over the replicas."""
    if reduction_of(divisor, rows) == "sum":
        return add_up(divisor)
    operation = divisor.op
    total = of_whole(operation.inputs[0], rows, add_up)
    if operation.type == "Cast":
        return tf.cast(total, divisor.dtype)
    if operation.type in _PASSES_ON:
        return total
    constant = tf.constant(_constant(operation.inputs[1]), total.dtype)  # `total` may be in another graph
    return tf.maximum(total, constant) if operation.type == "Maximum" else total + constant
