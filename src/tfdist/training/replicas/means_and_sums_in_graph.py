"""Find out from a traced graph whether a number is a mean or a sum over the examples of a batch.

Replicas that each have a part of the batch average their means, and add up their sums.
"""

from collections.abc import Collection
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from tfdist._utils.operations_behind import operations_behind
from tfdist.training.replicas.graph_queries import (
    KEEPS_STATE,
    PASSES_ON,
    followed,
    has_rows,
    is_length,
    is_marked_as_same,
    is_same,
    passed_on,
    reduces_first_axis,
)
from tfdist.training.replicas.ops_across_examples import is_chosen, what_mixes_examples

Reduction: TypeAlias = Literal["mean", "sum", "same"]  # over a batch; "same" without regard to it
_LINEAR = (
    *PASSES_ON, *KEEPS_STATE, "CheckNumericsV2", "ConcatV2", "IdentityN", "StridedSlice", "Unpack",
    "Add", "AddV2", "AddN", "Sub", "Pack", "Sum", "Mean",
)  # fmt: skip
_OF_SHAPE = {
    "Const", "Cast", "Identity", "Shape", "Size", "StridedSlice", "GatherV2", "Pack", "Prod", "Mul",
    "Maximum",
}  # fmt: skip
_SIZES = ("Shape", "Size")


def reduction_of(number: Any, rows: int | None = None, means: Collection[int] = ()) -> Reduction | None:
    """Return "mean" or "sum" over a batch, "same" without regard to it, None if it is unknown.

    Args:
        number: One number.
        rows: The number of examples, None in a graph that does not fix it.
        means: The ids of tensors that are known to be means.
    """
    if not isinstance(number, tf.Tensor):  # but one of Python's, or a variable
        return "same"
    if id(number) in means:
        return "mean"
    if tf.executing_eagerly():  # there is no graph to look at
        return None
    operation = number.op
    inputs = list(operation.inputs)
    if is_marked_as_same(operation):
        return "same"
    if operation.type in PASSES_ON:
        return reduction_of(inputs[0], rows, means)
    added = summands(operation)
    if added:
        kinds = {reduction_of(tensor, rows, means) for tensor in added}
        return "mean" if kinds == {"mean", "same"} else kinds.pop() if len(kinds) == 1 else None
    if operation.type in ("Mean", "Sum", "L2Loss"):
        if has_rows(inputs[0], rows) and not _is_reduced(inputs[0]):
            if what_mixes_examples(inputs[0], rows) is not None:
                return None
            return "sum" if operation.type != "Mean" else None if is_chosen(inputs[0]) else "mean"
        return "same" if is_same(number) else reduction_of(inputs[0], rows, means)
    if operation.type in ("Mul", "RealDiv", "DivNoNan"):
        return _of_product(operation, rows, means)
    return "same" if is_same(number) else "sum" if is_number_of_chosen(number) else None


def summands(operation: tf.Operation) -> list[tf.Tensor]:
    """Return the tensors that an operation adds up or subtracts, none if it does something else."""
    if operation.type in ("Add", "AddV2", "AddN", "Sub"):
        return list(operation.inputs)
    packed = operation.inputs[0].op if operation.type == "Sum" else operation
    is_of_numbers = packed.type == "Pack" and packed.outputs[0].shape.rank == 1  # as Keras adds up losses
    return list(packed.inputs) if operation.type == "Sum" and is_of_numbers else []


def is_number_of_chosen(number: tf.Tensor) -> bool:
    """Return whether a number is that of values, or of rows, which were chosen of those of a batch."""
    operation = number.op
    if operation.type == "StridedSlice":
        is_first = not is_length(operation) and operation.get_attr("shrink_axis_mask") == 1
        operation = operation.inputs[0].op
        return is_first and operation.type == "Shape" and is_chosen(operation.inputs[0])
    return bool(operation.type == "Size") and is_chosen(operation.inputs[0])


def _is_reduced(tensor: tf.Tensor) -> bool:
    """Return whether the axis of the batch is reduced before, so that the first one is another axis."""
    operation = passed_on(tensor, PASSES_ON).op
    return operation.type in ("Mean", "Sum") and reduces_first_axis(operation)


def _of_product(operation: tf.Operation, rows: int | None, means: Collection[int]) -> Reduction | None:
    first, second = operation.inputs
    if operation.type != "Mul" and all(
        operation.type in _OF_SHAPE for operation in operations_behind([second], until=_is_size)
    ):
        kind = reduction_of(first, rows, means)
        sizes = [each for each in operations_behind([second], until=_is_size) if each.type in _SIZES]
        is_by_examples = bool(sizes)
        if any(is_chosen(size.inputs[0]) and not is_same(size.inputs[0]) for size in sizes):
            return None
        return kind if not is_by_examples else "mean" if kind == "sum" else None
    if is_same(second):
        return reduction_of(first, rows, means)
    is_number = operation.type == "Mul" and is_same(first)
    return reduction_of(second, rows, means) if is_number else None


def _is_size(operation: tf.Operation) -> bool:
    """Return whether an operation is the size of a batch, or that of another axis."""
    return operation.type in _SIZES or is_length(operation)


def is_linear_in(result: tf.Tensor, numbers: Collection[tf.Tensor]) -> bool:
    """Return whether a result is a sum of numbers of its graph, each multiplied by what depends on none."""
    begun = [number for number in numbers if number.graph is result.graph]
    kept = followed(begun, result.graph, is_linear)
    return kept.get(result.name, True)


def is_linear(operation: tf.Operation, depends: list[bool]) -> bool:
    """Return whether an operation adds up those of its inputs that depend on something, or scales one."""
    kind = operation.type
    if kind == "Mul":
        return sum(depends) == 1
    if kind in ("RealDiv", "DivNoNan"):
        return depends == [True, False]
    return kind in _LINEAR
