"""Find out from a traced graph whether values mix examples, or are those of chosen ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_private import MOMENTS
from tfdist._utils.operations_behind import operations_behind
from tfdist.training.replicas.detect_paired_examples import depends_on_data, pairs_examples
from tfdist.training.replicas.graph_queries import (
    PASSES_ON,
    has_rows,
    is_length,
    is_same,
    reads_variable,
    reduces_first_axis,
)

_REDUCING = ("Max", "Mean", "Min", "Prod", "Sum")
# They put rows that were chosen, as for the experts of a layer, back in their places.
_PUT_BACK = (
    "DynamicStitch", "ParallelDynamicStitch", "ScatterNd", "TensorScatterAdd", "TensorScatterUpdate",
    "UnsortedSegmentSum",
)  # fmt: skip
_TOTALS = ("Max", "Min", "Prod", "Sum")
_TOTALS_BY_NUMBER = ("DenseBincount", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentSum")
_COMBINING = ("Add", "AddN", "AddV2", "Maximum", "Minimum", "Sub")
_PLACING = (
    "ConcatV2", "GatherV2", "Pack", "ReverseV2", "Roll", "ScatterNd", "SelectV2", "Slice", "StridedSlice",
    "TensorScatterAdd", "TensorScatterUpdate", "Transpose",
)  # fmt: skip
_CHOOSING = ("Where", "DynamicPartition")  # tf.boolean_mask makes the first of them


def what_mixes_examples(values: tf.Tensor, rows: int | None) -> tf.Operation | None:
    """Return an operation behind the values of each example that mixes examples, None if there is none.

    That is a mean or a sum over the batch, or what computes a value for each pair of examples. The moments
    of BatchNormalization are left out: those of a replica's part are its documented use.
    """
    for operation in operations_behind([values], until=reads_variable):
        if not operation.outputs or not operation.outputs[0].dtype.is_floating:
            continue
        if operation.type in ("Mean", "Sum"):
            is_mixing = has_rows(operation.inputs[0], rows) and reduces_first_axis(operation)
            if is_mixing and f"{MOMENTS}/" not in operation.name:
                return operation
        elif _multiplies_examples(operation, rows) or pairs_examples(operation, rows):
            return operation
    return None


def _multiplies_examples(product: tf.Operation, rows: int | None) -> bool:
    """Return whether an operation is a product of matrices that adds up over the examples, or pairs them."""
    if product.type != "MatMul":
        return False
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


def is_total_of_rows(values: tf.Tensor, rows: int | None) -> bool:
    """Return whether values contain what is no mean over the examples, so that means of parts do not make it.

    That is a sum over the examples, or their maximum; a sum that is divided by another one; or a mean of
    what mixes examples, as a variance is.
    """
    left, seen = [values], set[str]()
    while left:
        operation = left.pop().op
        if operation.name in seen:
            continue
        seen.add(operation.name)
        parts = _parts_of_total(operation, rows)
        if parts is None:
            return True
        left += parts
    return False


def keeps_rows(values: tf.Tensor, rows: int | None) -> bool:
    """Return whether values contain examples of the batch, or what is computed of each, as a queue does."""
    left, seen = [values], set[str]()
    while left:
        tensor = left.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if has_rows(tensor, rows) and depends_on_data(tensor):
            return True
        if tensor.op.type in (*PASSES_ON, *_COMBINING, *_PLACING):
            left += tensor.op.inputs
    return False


def _parts_of_total(operation: tf.Operation, rows: int | None) -> list[tf.Tensor] | None:
    """Return the inputs of an operation that may hold such a total; None if the operation makes one."""
    inputs = list(operation.inputs)
    if operation.type in PASSES_ON:
        return inputs[:1]
    if operation.type in _COMBINING:
        return inputs
    if operation.type in ("Mul", "RealDiv", "DivNoNan"):
        first, second = inputs
        if is_same(second):
            return [] if _divides_by_rows(operation, second, rows) else [first]
        if operation.type != "Mul":
            return [first] if depends_on_data(second) else []
        return [second] if is_same(first) else []
    is_total = False
    if operation.type in _TOTALS:
        is_total = has_rows(inputs[0], rows) and reduces_first_axis(operation)
    elif operation.type == "Mean":
        is_over_rows = has_rows(inputs[0], rows) and reduces_first_axis(operation)
        is_total = is_over_rows and what_mixes_examples(inputs[0], rows) is not None
    elif operation.type in _TOTALS_BY_NUMBER:
        is_total = has_rows(inputs[0], rows)
    elif operation.type == "MatMul":
        by_column = _has_examples_in_columns(operation, 0, rows)
        is_total = by_column and _has_examples_in_rows(operation, 1, rows)
    elif operation.type == "StridedSlice" and inputs[0].op.type == "Shape":
        is_total = not is_length(operation) and has_rows(inputs[0].op.inputs[0], rows)
    return None if is_total else []


def _divides_by_rows(operation: tf.Operation, divisor: tf.Tensor, rows: int | None) -> bool:
    """Return whether an operation divides by the number of examples, which the graph has as a constant."""
    value = tf.get_static_value(divisor)
    if operation.type == "Mul" or rows is None or value is None or np.size(value) != 1:
        return False
    return bool(np.asarray(value).item() % rows == 0)


def has_chosen_rows(values: Any) -> bool:
    """Return whether values may be those of chosen examples, of which each replica has another number."""
    if tf.executing_eagerly():  # nothing shows how they were computed
        return True
    return is_chosen(values, until=lambda operation: operation.type in _PUT_BACK)


def is_chosen(values: tf.Tensor, until: Callable[[tf.Operation], bool] = lambda _: False) -> bool:
    """Return whether values are those of chosen examples; `until` ends the search behind them."""
    made_by = operations_behind(
        [values], until=lambda operation: reads_variable(operation) or until(operation)
    )
    return any(operation.type in _CHOOSING for operation in made_by)


def is_without_rows(values: Any, rows: int | None) -> bool:
    """Return whether values have no row for each example, but one for each class or the like."""
    if tf.executing_eagerly() or not values.shape.rank or values.shape[0] is None:
        return False
    first = values.shape[0]
    if rows is None:
        return _is_over_batch(values)
    return first < rows or bool(first % rows)  # a multiple is that of several numbers for each example


def _is_over_batch(values: tf.Tensor) -> bool:
    """Return whether an operation behind values has reduced the axis of a batch of any size."""
    made_by = operations_behind([values], until=reads_variable)
    return any(
        each.type in _REDUCING
        and each.inputs[0].shape.rank
        and each.inputs[0].shape[0] is None
        and reduces_first_axis(each)
        for each in made_by
    )
