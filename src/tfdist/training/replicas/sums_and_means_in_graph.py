"""Find out from a traced graph how numbers of the parts of a batch make that of the whole.

Replicas that each have a part of the batch average their means, and add up their sums. A metric whose
`update_state` only adds to its variables can be counted in parts, in any order. Keras does not record which
metrics do so; the graph shows it, if each operation between the old value and the new one is known to keep
this property.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_private import MOMENTS
from tfdist._utils.operations_behind import operations_behind

Reduction: TypeAlias = Literal["mean", "sum", "same"]  # over a batch; "same" without regard to it
_PASSES_ON = (
    "Cast", "Identity", "Neg", "EnsureShape", "Reshape", "Squeeze", "ExpandDims", "StopGradient",
)  # fmt: skip
_KEEPS_STATE = (
    "Identity", "EnsureShape", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "Reshape",
)  # fmt: skip
_LINEAR = (
    *_PASSES_ON, *_KEEPS_STATE, "CheckNumericsV2", "ConcatV2", "IdentityN", "StridedSlice", "Unpack",
    "Add", "AddV2", "AddN", "Sub", "Pack", "Sum", "Mean",
)  # fmt: skip
_OF_SHAPE = {
    "Const", "Cast", "Identity", "Shape", "Size", "StridedSlice", "GatherV2", "Pack", "Prod", "Mul",
    "Maximum",
}  # fmt: skip
_SIZES = ("Shape", "Size")
_REDUCING = ("Max", "Mean", "Min", "Prod", "Sum")
# They put rows that were chosen, as for the experts of a layer, back in their places.
_PUT_BACK = (
    "DynamicStitch", "ParallelDynamicStitch", "ScatterNd", "TensorScatterAdd", "TensorScatterUpdate",
    "UnsortedSegmentSum",
)  # fmt: skip
_CHOOSING = ("Where", "DynamicPartition")  # tf.boolean_mask makes the first of them


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


def reduction_of(number: Any, rows: int | None = None, means: Collection[int] = ()) -> Reduction | None:
    """Return "mean" or "sum" over a batch, "same" without regard to it, None if it is unknown.

    Args:
        number: One number.
        rows: The number of examples, None in a graph that does not fix it.
        means: The ids of tensors that are known to be means.
    """
    if not tf.is_tensor(number):  # but one of Python's
        return "same"
    if id(number) in means:
        return "mean"
    if tf.executing_eagerly():  # there is no graph to look at
        return None
    operation = number.op
    inputs = list(operation.inputs)
    if operation.type in _PASSES_ON:
        return reduction_of(inputs[0], rows, means)
    added = summands(operation)
    if added:
        kinds = {reduction_of(tensor, rows, means) for tensor in added}
        return "mean" if kinds == {"mean", "same"} else kinds.pop() if len(kinds) == 1 else None
    if operation.type in ("Mean", "Sum", "L2Loss"):
        if has_rows(inputs[0], rows) and not _is_reduced(inputs[0]):
            if what_mixes_examples(inputs[0], rows) is not None:
                return None
            return "sum" if operation.type != "Mean" else None if _is_chosen(inputs[0]) else "mean"
        return "same" if is_same(number) else reduction_of(inputs[0], rows, means)
    if operation.type in ("Mul", "RealDiv", "DivNoNan"):
        return _of_product(operation, rows, means)
    return "same" if is_same(number) else None


def summands(operation: tf.Operation) -> list[tf.Tensor]:
    """Return the tensors that an operation adds up or subtracts, none if it does something else."""
    if operation.type in ("Add", "AddV2", "AddN", "Sub"):
        return list(operation.inputs)
    packed = operation.inputs[0].op if operation.type == "Sum" else operation
    is_of_numbers = packed.type == "Pack" and packed.outputs[0].shape.rank == 1  # as Keras adds up losses
    return list(packed.inputs) if operation.type == "Sum" and is_of_numbers else []


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


def what_mixes_examples(values: tf.Tensor, rows: int | None) -> tf.Operation | None:
    """Return an operation behind the values of each example that mixes examples, None if there is none.

    That is a mean or a sum over the batch, or a product of examples with each other. The moments of
    BatchNormalization are left out: those of a replica's part are its documented use.
    """
    for operation in operations_behind([values], until=_reads_variable):
        if not operation.outputs or not operation.outputs[0].dtype.is_floating:
            continue
        if operation.type in ("Mean", "Sum"):
            is_mixing = has_rows(operation.inputs[0], rows) and _reduces_first_axis(operation)
            if is_mixing and f"{MOMENTS}/" not in operation.name:
                return operation
        elif operation.type == "MatMul" and _multiplies_examples(operation, rows):
            return operation
    return None


def _multiplies_examples(product: tf.Operation, rows: int | None) -> bool:
    """Return whether a product of matrices sums over the examples, or multiplies each with all others."""
    by_column = [_has_examples_in_columns(product, place, rows) for place in (0, 1)]
    by_row = [_has_examples_in_rows(product, place, rows) for place in (0, 1)]
    return by_column[0] or by_row[1] or (by_row[0] and by_column[1])


def _has_examples_in_rows(product: tf.Operation, place: int, rows: int | None) -> bool:
    is_transposed = product.get_attr(("transpose_a", "transpose_b")[place])
    return not is_transposed and has_rows(product.inputs[place], rows)


def _has_examples_in_columns(product: tf.Operation, place: int, rows: int | None) -> bool:
    factor = product.inputs[place]
    if product.get_attr(("transpose_a", "transpose_b")[place]):
        return has_rows(factor, rows)
    return bool(factor.op.type == "Transpose") and has_rows(factor.op.inputs[0], rows)


def _is_reduced(tensor: tf.Tensor) -> bool:
    """Return whether the axis of the batch is reduced before, so that the first one is another axis."""
    operation = passed_on(tensor, _PASSES_ON).op
    return operation.type in ("Mean", "Sum") and _reduces_first_axis(operation)


def _reduces_first_axis(operation: tf.Operation) -> bool:
    values, axes = operation.inputs
    axes = tf.get_static_value(axes)
    return bool(values.shape.rank) and axes is not None and not np.all(axes % values.shape.rank)


def _of_product(operation: tf.Operation, rows: int | None, means: Collection[int]) -> Reduction | None:
    first, second = operation.inputs
    if operation.type != "Mul" and all(
        operation.type in _OF_SHAPE for operation in operations_behind([second], until=_is_size)
    ):
        kind = reduction_of(first, rows, means)
        is_by_examples = any(
            operation.type in _SIZES for operation in operations_behind([second], until=_is_size)
        )
        return kind if not is_by_examples else "mean" if kind == "sum" else None
    if is_same(second):
        return reduction_of(first, rows, means)
    is_number = operation.type == "Mul" and is_same(first)
    return reduction_of(second, rows, means) if is_number else None


def is_same(tensor: tf.Tensor) -> bool:
    """Return whether a tensor depends on constants and variables only."""
    return all(
        operation.inputs or operation.type in ("Const", "ReadVariableOp")
        for operation in operations_behind(
            [tensor], until=lambda operation: operation.type == "ReadVariableOp"
        )
    )


def _is_size(operation: tf.Operation) -> bool:
    """Return whether an operation is the size of a batch, or that of another axis."""
    return operation.type in _SIZES or is_length(operation)


def is_linear_in(result: tf.Tensor, numbers: Collection[tf.Tensor]) -> bool:
    """Return whether a result is a sum of numbers of its graph, each multiplied by what depends on none."""
    followed = _followed(
        [number for number in numbers if number.graph is result.graph],
        result.graph,
        lambda operation, depends: _is_linear(operation.type, depends),
    )
    return followed.get(result.name, True)


def _is_linear(kind: str, depends: list[bool]) -> bool:
    if kind == "Mul":
        return sum(depends) == 1
    if kind in ("RealDiv", "DivNoNan"):
        return depends == [True, False]
    return kind in _LINEAR


def has_chosen_rows(values: Any) -> bool:
    """Return whether values may be those of chosen examples, of which each replica has another number."""
    if tf.executing_eagerly():  # nothing shows how they were computed
        return True
    return _is_chosen(values, until=lambda operation: operation.type in _PUT_BACK)


def _is_chosen(values: tf.Tensor, until: Callable[[tf.Operation], bool] = lambda _: False) -> bool:
    made_by = operations_behind(
        [values], until=lambda operation: _reads_variable(operation) or until(operation)
    )
    return any(operation.type in _CHOOSING for operation in made_by)


def is_over_batch(values: tf.Tensor) -> bool:
    """Return whether an operation behind values has reduced the axis of a batch of any size."""
    made_by = operations_behind([values], until=_reads_variable)
    return any(
        each.type in _REDUCING
        and each.inputs[0].shape.rank
        and each.inputs[0].shape[0] is None
        and _reduces_first_axis(each)
        for each in made_by
    )


def _reads_variable(operation: tf.Operation) -> bool:
    return bool(operation.type == "ReadVariableOp")


def only_added_to(pairs: Sequence[tuple[Any, tf.Tensor]]) -> list[bool]:
    """Return for each state whether a batch only adds to it, and reads it for no other state.

    Args:
        pairs: For each state, the new tensor, or None where it is not written, and the old one, of the graph
            that is being built.
    """
    followed = [_sums_of(old) for _, old in pairs]
    names = [old.name if new is None else tf.convert_to_tensor(new).name for new, old in pairs]
    # Each state that depends on another one, with that one.
    dependent = {
        (place, other)
        for place, name in enumerate(names)
        for other, sums in enumerate(followed)
        if other != place and name in sums
    }
    return [
        _is_sum(new, old, sums) and not any(place in both for both in dependent)
        for place, ((new, old), sums) in enumerate(zip(pairs, followed, strict=True))
    ]


def adds_one(new: Any, old: tf.Tensor) -> bool:
    """Return whether a batch adds the number 1 to a state, whatever its examples are."""
    if new is None or new is old:
        return False
    operation = passed_on(tf.convert_to_tensor(new), _KEEPS_STATE).op
    others = [tensor for tensor in operation.inputs if tensor is not old]
    if operation.type not in ("Add", "AddV2") or len(others) != 1:
        return False
    added = tf.get_static_value(others[0])
    return added is not None and bool(np.all(added == 1))


def _is_sum(new: Any, old: tf.Tensor, sums: dict[str, bool]) -> bool:
    if new is None or new is old:
        return True
    new = tf.convert_to_tensor(new)
    return sums.get(new.name, False) and bool(new.shape.is_compatible_with(old.shape))


def _sums_of(old: tf.Tensor) -> dict[str, bool]:
    """Return the name of each tensor that depends on one, and whether it is this one plus something."""
    return _followed([old], old.graph, _keeps)


def _followed(
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


def _keeps(operation: tf.Operation, depends: list[bool]) -> bool:
    """Return whether an operation's output is its input that depends on the old value, plus something."""
    kind, inputs = operation.type, list(operation.inputs)
    if kind in _KEEPS_STATE:
        return depends[0] and not any(depends[1:])
    if kind == "Cast":
        into, out_of = operation.outputs[0].dtype, inputs[0].dtype
        return bool(into.is_floating or (into.is_integer and out_of.is_integer))
    if kind in ("Add", "AddV2", "AddN", "Sub"):
        # The other inputs must not broadcast the sum to another shape.
        place = depends.index(True)
        has_shape = inputs[place].shape.as_list() == operation.outputs[0].shape.as_list()
        return has_shape and sum(depends) == 1 and (kind != "Sub" or place == 0)
    if kind in ("Select", "SelectV2"):
        return depends == [False, True, True]
    if kind in ("TensorScatterAdd", "TensorScatterSub"):
        return depends == [True, False, False]
    return False
