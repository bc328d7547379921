"""Look at the operations of a traced graph: what they pass on, and what depends on what."""

from collections.abc import Callable, Collection

import numpy as np
import tensorflow as tf

from tfdist._utils.operations_behind import operations_behind

PASSES_ON = (
    "Cast", "Identity", "Neg", "EnsureShape", "Reshape", "Squeeze", "ExpandDims", "StopGradient",
)  # fmt: skip
KEEPS_STATE = (
    "Identity", "EnsureShape", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "Reshape",
)  # fmt: skip


_SAME = "same_on_all_replicas"  # the name of operations


def marked_as_same(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor as one that is the same on all replicas, though it is computed of examples."""
    return tf.identity(tensor, name=_SAME)


def is_marked_as_same(operation: tf.Operation) -> bool:
    """Return whether an operation is one of `marked_as_same`."""
    return bool(operation.name.rpartition("/")[2].startswith(_SAME))


def passed_on(tensor: tf.Tensor, types: Collection[str]) -> tf.Tensor:
    """Return the tensor whose values operations of some types have passed on to this one."""
    while tensor.op.type in types:
        tensor = tensor.op.inputs[0]
    return tensor


def is_length(operation: tf.Operation) -> bool:
    """Return whether an operation reads another dimension of a shape than the first, which is the batch's."""
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    begin, rank = tf.get_static_value(operation.inputs[1]), operation.inputs[0].op.inputs[0].shape.rank
    if begin is None or rank is None:
        return False
    return bool(begin[0] % rank) and operation.get_attr("shrink_axis_mask") == 1


def is_same(tensor: tf.Tensor) -> bool:
    """Return whether a tensor depends on constants, variables and what is marked as the same only."""

    def is_known(operation: tf.Operation) -> bool:
        return operation.type == "ReadVariableOp" or is_marked_as_same(operation)

    return all(
        operation.inputs or operation.type in ("Const", "ReadVariableOp")
        for operation in operations_behind([tensor], until=is_known)
    )


def has_rows(values: tf.Tensor, rows: int | None) -> bool:
    """Return whether values have a row, or several, for each example; `rows` is the number of examples."""
    if not values.shape.rank:
        return False
    first = values.shape[0]
    if first is None:
        return True
    if rows is None:
        return False
    is_multiple = first == rows or (rows > 1 and first % rows == 0)
    return is_multiple and bool(first) and (tf.executing_eagerly() or not is_same(values))


def is_number_of_rows(number: tf.Tensor, data: Collection[tf.Tensor]) -> bool:
    """Return whether a number is the first length of one of the tensors of a batch."""
    sliced = passed_on(number, PASSES_ON).op
    if sliced.type != "StridedSlice" or sliced.inputs[0].op.type != "Shape" or is_length(sliced):
        return False
    kinds = ("Cast", "Identity", "EnsureShape")
    measured = passed_on(sliced.inputs[0].op.inputs[0], kinds).op
    is_number = sliced.get_attr("shrink_axis_mask") == 1
    return is_number and any(measured is passed_on(tensor, kinds).op for tensor in data)


def reduces_first_axis(operation: tf.Operation) -> bool:
    """Return whether a mean, a sum or the like is over the first axis of its values."""
    values, axes = operation.inputs
    axes = tf.get_static_value(axes)
    return bool(values.shape.rank) and axes is not None and not np.all(axes % values.shape.rank)


def reads_variable(operation: tf.Operation) -> bool:
    """Return whether an operation reads a variable."""
    return bool(operation.type == "ReadVariableOp")


def followed(
    begun: Collection[tf.Tensor], graph: tf.Graph, keeps: Callable[[tf.Operation, list[bool]], bool]
) -> dict[str, bool]:
    """Return the name of each tensor that depends on some, and whether all operations in between keep it.

    `keeps` gets an operation, and for each of its inputs whether it depends on those that were begun with.
    """
    kept = {tensor.name: True for tensor in begun}
    for operation in graph.get_operations():  # in the order in which they were made
        depends = [tensor.name in kept for tensor in operation.inputs]
        if any(depends):
            is_kept = [kept.get(tensor.name, False) for tensor in operation.inputs] == depends
            is_kept = is_kept and keeps(operation, depends)
            kept |= {tensor.name: kept.get(tensor.name, is_kept) for tensor in operation.outputs}
    return kept
