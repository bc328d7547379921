"""Keep the slices that sparse gradients have in one process, where replicas each have a part of the batch.

Keras's optimizers square and clip slice by slice, which gives another number than the square of their sum.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.operations_behind import captured
from tfdist.strategies.gradient_arithmetic import scaled, shaped
from tfdist.training.replicas.graph_queries import is_length, passed_on

# Operations that repeat rows for each example, or return the number of examples.
_OF_EXAMPLES = ("BroadcastTo", "Shape", "Size", "Tile")
# Operations that read a variable, which is the same on all replicas: what layers write is caught.
_READS = ("ReadVariableOp", "ResourceGather")

_Lookup = tuple[tf.Tensor, tf.Tensor]  # rows, and the gradient's values for them


class Addend(NamedTuple):
    """The values of a sparse gradient to add, slice by slice, to those of another with the same rows."""

    values: tf.Tensor


def slices_of(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return the tensors of gradients that have a row for each slice of a sparse one."""
    found = []
    for gradient in gradients:
        if isinstance(gradient, (tf.IndexedSlices, Addend)):
            found.append(gradient.values)
        if isinstance(gradient, tf.IndexedSlices):
            found.append(gradient.indices)
    return found


def addends(gradients: Sequence[list[Any]]) -> list[list[Any]]:
    """Return the gradients of each loss of a step in forms that `summed` adds up slice by slice."""
    if len(gradients) < 2 or not gradients[0]:
        return list(gradients)
    of_variables = [_as_addends(of_losses) for of_losses in zip(*gradients, strict=True)]
    return [list(of_loss) for of_loss in zip(*of_variables, strict=True)]


def _as_addends(gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients of one variable, of each loss, in these forms."""
    known = [gradient for gradient in gradients if gradient is not None]
    if not any(isinstance(gradient, tf.IndexedSlices) for gradient in known):
        return list(gradients)
    if not all(isinstance(gradient, tf.IndexedSlices) for gradient in known):  # one process adds tensors too
        return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    lookups: list[_Lookup] = []  # those of all losses, which the slices of one process are of
    places = [_places_in(lookups, gradient) for gradient in known]
    kinds = {rows.dtype for rows, _ in lookups}
    rows = [rows if len(kinds) == 1 else tf.cast(rows, tf.int64) for rows, _ in lookups]
    first = tf.IndexedSlices(_values_at(lookups, places[0]), _joined(rows), known[0].dense_shape)
    forms = iter([first, *(Addend(_values_at(lookups, each)) for each in places[1:])])
    return [None if gradient is None else next(forms) for gradient in gradients]


def _places_in(lookups: list[_Lookup], gradient: tf.IndexedSlices) -> dict[int, tf.Tensor]:
    """Return the values of a sparse gradient by the place of their lookup, and add those that are new."""
    found: dict[int, tf.Tensor] = {}
    for rows, values in _lookups_of(gradient):
        same = (place for place, (other, _) in enumerate(lookups) if _are_same(other, rows))
        place = next((place for place in same if place not in found), len(lookups))
        if place == len(lookups):
            lookups.append((rows, values))
        found[place] = values
    return found


def _lookups_of(gradient: tf.IndexedSlices) -> list[_Lookup]:
    """Return the parts of a sparse gradient that TensorFlow has put together, one for each lookup."""
    if not tf.executing_eagerly():
        both = gradient.indices.op, gradient.values.op
        if all(operation.type == "ConcatV2" for operation in both):
            rows, values = (operation.inputs[:-1] for operation in both)
            if len(rows) == len(values) and all(part.shape.rank == 1 for part in rows):
                return list(zip(rows, values, strict=True))
    return [(gradient.indices, gradient.values)]


def _values_at(lookups: list[_Lookup], found: dict[int, tf.Tensor]) -> tf.Tensor:
    return _joined(
        [found[place] if place in found else tf.zeros_like(like) for place, (_, like) in enumerate(lookups)]
    )


def _joined(parts: list[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def summed(gradients: Sequence[Any], factors: Sequence[tf.Tensor]) -> Any:
    """Return the sum of the gradients of one variable, of each loss, times the losses' factors."""
    total: Any = None
    for gradient, factor in zip(gradients, factors, strict=True):
        if gradient is None:
            continue
        values = gradient.values if isinstance(gradient, Addend) else gradient
        total = _plus(total, scaled(values, factor))
    return total


def _plus(total: Any, addend: Any) -> Any:
    if total is None:
        return addend
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(total.values + addend, total.indices, total.dense_shape)
    return total + addend


def _are_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Return whether two tensors of row numbers come from the same lookups."""
    if one.dtype != other.dtype:
        return False
    if tf.executing_eagerly():
        return one.shape == other.shape and bool(tf.reduce_all(one == other))
    one, other = (passed_on(tensor, ("Reshape",)) for tensor in (one, other))
    if one is other:
        return True
    pairs = [one.op.inputs[:-1], other.op.inputs[:-1]]  # the last input of ConcatV2 is its axis
    is_concat = one.op.type == other.op.type == "ConcatV2" and len(pairs[0]) == len(pairs[1])
    return is_concat and all(_are_same(*pair) for pair in zip(*pairs, strict=True))


def slices_of_one_process(gradients: list[Any], variables: list[Any], *, are_added_up: bool) -> list[Any]:
    """Return a replica's gradients, whose slices together with those of the others are those of one process.

    If `are_added_up`, the update adds up the slices of a row, so the replica may do so before.
    """
    gradients = dense_where_rows_are_shared(gradients, are_added_up=are_added_up)
    return shaped(with_rows_summed(gradients) if are_added_up else gradients, variables)


def dense_where_rows_are_shared(gradients: list[Any], *, are_added_up: bool) -> list[Any]:
    """Return gradients; as a tensor, each one whose rows depend on no example and come once, as positions do.

    One process has one slice for such a row. Replicas have one each, unless they add up tensors. The rows may
    come several times if the update adds them up anyway (`are_added_up`).
    """
    return [
        tf.convert_to_tensor(gradient)
        if are_shared and (are_added_up or _come_once(gradient.indices))
        else gradient
        for gradient, are_shared in zip(gradients, have_shared_rows(gradients), strict=True)
    ]


def have_shared_rows(gradients: list[Any]) -> list[bool]:
    """Return which gradients have rows that depend on no example: each replica has the same, in one order."""
    return [
        isinstance(gradient, tf.IndexedSlices) and not _depends_on_examples(gradient.indices)
        for gradient in gradients
    ]


def _come_once(rows: tf.Tensor) -> bool:
    """Return whether rows that depend on no example are known to be different."""
    rows = passed_on(rows, ("Reshape",))
    if rows.op.type == "Range" or _are_unique(rows):
        return True
    while (outer := captured(rows)) is not None:
        rows = outer
    known = tf.get_static_value(rows)
    return known is not None and len(np.unique(known)) == known.size


def with_replicas_added_up(gradients: list[Any], chosen: Sequence[bool], replicas: tf.Tensor) -> list[Any]:
    """Return gradients; in the chosen ones, the slices of all replicas are added up place by place.

    Each replica has the same rows, and the slices of one replica follow those of another. One process has one
    slice for each place, which is that of the whole batch.
    """
    return [
        _with_replicas_added_up(gradient, replicas) if is_chosen else gradient
        for gradient, is_chosen in zip(gradients, chosen, strict=True)
    ]


def _with_replicas_added_up(gradient: tf.IndexedSlices, replicas: tf.Tensor) -> tf.IndexedSlices:
    replicas = tf.cast(replicas, tf.int32)
    rows, values = gradient.indices, gradient.values
    parts = tf.reshape(values, tf.concat([[replicas, tf.size(rows) // replicas], tf.shape(values)[1:]], 0))
    rows = rows[: tf.size(rows) // replicas]
    return tf.IndexedSlices(tf.reduce_sum(parts, axis=0), rows, gradient.dense_shape)


def have_unique_rows(gradients: list[Any]) -> list[bool]:
    """Return which gradients have one slice for each row that the batch contains, as those of sparse inputs.

    TensorFlow has added up the slices of a row. Of several replicas, each has such a slice, so the slices of
    a row are added up again where the replicas have shared them.
    """
    return [
        isinstance(gradient, tf.IndexedSlices) and _are_unique(gradient.indices) for gradient in gradients
    ]


def _are_unique(rows: tf.Tensor) -> bool:
    if tf.executing_eagerly():  # nothing shows how they were computed
        return False
    return passed_on(rows, ("Reshape",)).op.type in ("Unique", "UniqueV2")


def with_rows_summed(gradients: list[Any], chosen: Sequence[bool] | None = None) -> list[Any]:
    """Return gradients with the slices of each row added up to one: in all of them, or in the chosen ones."""
    chosen = [True] * len(gradients) if chosen is None else chosen
    return [
        _with_rows_summed(gradient) if is_chosen and isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient, is_chosen in zip(gradients, chosen, strict=True)
    ]


def _with_rows_summed(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _depends_on_examples(tensor: Any) -> bool:
    """Return whether a tensor may depend on the examples of a batch, or on their number."""
    if tf.executing_eagerly():  # nothing shows how it was computed
        return True
    seen: set[int] = set()
    pending = [tensor]
    while pending:
        tensor = pending.pop()
        if hasattr(tensor, "numpy"):  # a value from outside of the graph
            if tensor.dtype == tf.resource:
                return True
            continue
        operation = tensor.op
        if id(operation) in seen or is_length(operation):
            continue
        seen.add(id(operation))
        if operation.type == "Placeholder":
            outer = captured(tensor)
            if outer is None:
                return True
            pending.append(outer)
        elif operation.type in _READS:
            pending += operation.inputs[1:]  # the first one is the variable
            continue
        elif operation.type in _OF_EXAMPLES or operation.op_def.is_stateful:
            return True
        is_reshape = operation.type == "Reshape"  # its second input is a shape, and moves no value
        pending += operation.inputs[:1] if is_reshape else operation.inputs
    return False
