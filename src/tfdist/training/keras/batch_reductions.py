"""Find out from a graph whether a number is a mean over the examples of a batch, or their sum.

Replicas that each have a part of the batch average their means, and add up their sums.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training.exact_sparse_gradients import is_length

__all__ = ["reduction_of"]

_PASSES_ON = (
    "Cast", "Identity", "Neg", "EnsureShape", "Reshape", "Squeeze", "ExpandDims", "StopGradient",
)  # fmt: skip
_CONSTANT = ("Const", "Cast", "Identity")
_OF_SHAPE = (*_CONSTANT, "Shape", "Size", "StridedSlice", "GatherV2", "Pack", "Prod", "Mul", "Maximum")
_SIZES = ("Shape", "Size")
_CHOOSING = ("Where", "DynamicPartition")  # tf.boolean_mask makes the first of them


def reduction_of(number: Any) -> str | None:
    """Return "mean" or "sum" over a batch of any size, "same" without regard to it, None if it is unknown."""
    if not tf.is_tensor(number):  # but one of Python's
        return "same"
    if tf.executing_eagerly():  # there is no graph to look at
        return None
    operation = number.op
    inputs = list(operation.inputs)
    if operation.type in _PASSES_ON:
        return reduction_of(inputs[0])
    if operation.type in ("Mean", "Sum", "L2Loss"):
        if inputs[0].shape.rank and inputs[0].shape[0] is None and not _is_reduced(inputs[0]):
            return "sum" if operation.type != "Mean" else None if _is_chosen(inputs[0]) else "mean"
        return "same" if _is_same(number) else reduction_of(inputs[0])
    if operation.type in ("Add", "AddV2", "AddN", "Sub"):
        kinds = {reduction_of(tensor) for tensor in inputs}
        return "mean" if kinds == {"mean", "same"} else kinds.pop() if len(kinds) == 1 else None
    if operation.type in ("Mul", "RealDiv", "DivNoNan"):
        return _of_product(operation)
    return "same" if _is_same(number) else None


def _is_reduced(tensor: tf.Tensor) -> bool:
    """Return whether the axis of the batch is reduced before, so that the first one is another axis."""
    operation = tensor.op
    while operation.type in _PASSES_ON:
        operation = operation.inputs[0].op
    if operation.type not in ("Mean", "Sum"):
        return False
    values, axes = operation.inputs
    axes = tf.get_static_value(axes)
    return bool(values.shape.rank) and axes is not None and not np.all(axes % values.shape.rank)


def _of_product(operation: tf.Operation) -> str | None:
    first, second = operation.inputs
    if operation.type != "Mul" and all(each.type in _OF_SHAPE for each in _made_by(second, until=_is_size)):
        kind = reduction_of(first)
        is_by_examples = any(each.type in _SIZES for each in _made_by(second, until=_is_size))
        return {"sum": "mean"}.get(str(kind)) if is_by_examples else kind
    if _is_same(second):
        return reduction_of(first)
    return reduction_of(second) if operation.type == "Mul" and _is_same(first) else None


def _is_same(tensor: tf.Tensor) -> bool:
    """Return whether a tensor depends on constants and variables only."""
    return all(
        operation.inputs or operation.type in ("Const", "ReadVariableOp")
        for operation in _made_by(tensor, until=lambda operation: operation.type == "ReadVariableOp")
    )


def _is_size(operation: tf.Operation) -> bool:
    """Return whether an operation is the size of a batch, or that of another axis."""
    return operation.type in _SIZES or is_length(operation)


def _is_chosen(values: tf.Tensor) -> bool:
    """Return whether the values are those of chosen examples, of which each replica has another number."""
    made_by = _made_by(values, until=lambda operation: operation.type == "ReadVariableOp")
    return any(operation.type in _CHOOSING for operation in made_by)


def _made_by(tensor: tf.Tensor, until: Callable[[tf.Operation], bool]) -> Iterator[tf.Operation]:
    """Yield the operations that a tensor is computed by, back to operations at which to stop."""
    seen, waiting = set(), [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            if not until(operation):
                waiting += [each.op for each in operation.inputs]
