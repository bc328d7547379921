"""Find out from a traced graph whether an operation computes a value for each pair of examples of a batch.

A loss that compares the examples of a batch broadcasts them, as in `x[:, None] - x[None]`, or multiplies them
by `tf.einsum` or `tf.tensordot`.
"""

import numpy as np
import tensorflow as tf

from tfdist._utils.operations_behind import captured, operations_behind
from tfdist.training.replicas.graph_queries import has_rows, passed_on, reads_variable

_BROADCASTING = (
    "Add", "AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "Maximum", "Minimum", "SquaredDifference",
)  # fmt: skip
_OF_ELEMENTS = (
    "Abs", "Cast", "Exp", "Identity", "Log", "Neg", "Relu", "Rsqrt", "Sigmoid", "Sqrt", "Square",
    "StopGradient", "Tanh",
)  # fmt: skip
_MOVING = ("ExpandDims", "StridedSlice", "Transpose")  # axes
_OF_SHAPES = ("Shape", "Size")
_DATA = ("IteratorGetNext", "OptionalGetValue")


def pairs_examples(operation: tf.Operation, rows: int | None) -> bool:
    """Return whether an operation computes a value for each pair of examples, or adds such products up.

    Args:
        operation: One of a traced graph.
        rows: The number of examples, None in a graph that does not fix it.
    """
    inputs = list(operation.inputs)
    if operation.type in _BROADCASTING:
        is_paired = _broadcasts_examples(inputs, rows)
    elif operation.type == "Einsum" and len(inputs) == 2:
        is_paired = _multiplies_pairs(operation, rows)
    elif operation.type == "MatMul":
        is_paired = _is_moved_to_columns(inputs[1], rows) and has_rows(inputs[0], rows)
    else:
        return False
    return is_paired and all(map(depends_on_data, inputs))


def _broadcasts_examples(inputs: list[tf.Tensor], rows: int | None) -> bool:
    """Return whether the axis of the examples of one input is another axis of the other."""
    if not any(passed_on(values, _OF_ELEMENTS).op.type in _MOVING for values in inputs):
        return False
    axes = [_axis_of_examples(values, rows) for values in inputs]
    return None not in axes and axes[0] != axes[1]


def _axis_of_examples(values: tf.Tensor, rows: int | None) -> int | None:
    """Return the axis of the examples, counted from the last as in broadcasting; None if there is none."""
    values = passed_on(values, _OF_ELEMENTS)
    operation, rank = values.op, values.shape.rank
    if rank is None:
        return None
    if operation.type not in _MOVING:
        return -rank if has_rows(values, rows) else None
    before = operation.inputs[0]
    axis = _axis_of_examples(before, rows)
    if axis is None or before.shape.rank is None:
        return None
    after = _axes_after(operation, before.shape.rank)
    place = before.shape.rank + axis
    return after.index(place) - rank if place in after else None


def _axes_after(operation: tf.Operation, rank: int) -> list[int | None]:
    """Return which axis of its input each axis of an operation's output is, None for a new one."""
    before: list[int | None] = list(range(rank))
    if operation.type == "StridedSlice":
        return _axes_of_slice(operation, before)
    static = tf.get_static_value(operation.inputs[1])
    if static is None:
        return []
    if operation.type == "Transpose":
        return [before[axis] for axis in static]
    place = int(static) % (rank + 1)
    return [*before[:place], None, *before[place:]]


def _axes_of_slice(operation: tf.Operation, before: list[int | None]) -> list[int | None]:
    """Return the axes of a slice, without those of which it takes a part."""
    begin = tf.get_static_value(operation.inputs[1])
    if begin is None:
        return []
    names = ("new_axis", "ellipsis", "shrink_axis", "begin", "end")
    masks = {name: operation.get_attr(f"{name}_mask") for name in names}
    is_set = [{name: bool(mask >> place & 1) for name, mask in masks.items()} for place in range(len(begin))]
    left, after = list(before), list[int | None]()
    for place, each in enumerate(is_set):
        if each["new_axis"]:
            after.append(None)
        elif each["ellipsis"]:
            kept = len(left) - sum(not later["new_axis"] for later in is_set[place + 1 :])
            after += left[:kept]
            left = left[kept:]
        else:
            axis = left.pop(0)
            if not each["shrink_axis"]:
                after.append(axis if each["begin"] and each["end"] else None)
    return [*after, *left]


def _multiplies_pairs(operation: tf.Operation, rows: int | None) -> bool:
    """Return whether an Einsum has a value for each pair of examples, or adds up over them."""
    equation = operation.get_attr("equation").decode()
    factors, result = equation.split("->")
    first, second = factors.split(",")
    if not (first and second and all(has_rows(values, rows) for values in operation.inputs)):
        return False
    are_pairs = first[0] != second[0] and first[0] in result and second[0] in result
    return are_pairs or (first[0] == second[0] and first[0] not in result)


def _is_moved_to_columns(factor: tf.Tensor, rows: int | None) -> bool:
    """Return whether `tf.tensordot` has moved the examples from the first axis to the columns of a matrix."""
    if factor.op.type != "Reshape" or factor.op.inputs[0].op.type != "Transpose":
        return False
    transpose = factor.op.inputs[0].op
    order = tf.get_static_value(transpose.inputs[1])
    return has_rows(transpose.inputs[0], rows) and order is not None and bool(np.ravel(order)[0])


def depends_on_data(values: tf.Tensor) -> bool:
    """Return whether values are computed of those of a batch, and not only of its size or of weights."""
    behind = operations_behind(
        [values],
        until=lambda operation: reads_variable(operation) or operation.type in _OF_SHAPES,
        are_outer=True,
    )
    return any(operation.type in _DATA or _is_argument(operation) for operation in behind)


def _is_argument(operation: tf.Operation) -> bool:
    """Return whether an operation stands for an argument of a function that is not a variable."""
    if operation.type != "Placeholder" or operation.outputs[0].dtype == tf.resource:
        return False
    return captured(operation.outputs[0]) is None
