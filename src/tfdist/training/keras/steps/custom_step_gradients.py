"""Compute the gradients of the whole batch for the custom step of one replica.

A step that passes gradients to an optimizer as they are needs the whole batch's only there. One that reads or
changes them before, as by `tf.clip_by_global_norm`, needs them as soon as they are computed.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.operations_behind import operations_behind
from tfdist.strategies.gradient_arithmetic import shaped, tensors_of, with_values
from tfdist.training.replicas.empty_replicas import or_zero
from tfdist.training.replicas.graph_queries import followed
from tfdist.training.replicas.means_and_sums_in_graph import is_linear
from tfdist.training.replicas.reduction import OfLoss, shared_mean
from tfdist.training.replicas.sparse_gradients import (
    have_shared_rows,
    have_unique_rows,
    slices_of_one_process,
    with_replicas_added_up,
    with_rows_summed,
)

_PLACES_ROWS = ("Transpose", "UnsortedSegmentSum")  # the latter makes a sparse gradient dense
_OTHER_GRAPHS = (
    "If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "PartitionedCall",
    "StatefulPartitionedCall",
)  # fmt: skip


def of_whole_batch(
    gradients: Sequence[Any], variables: Sequence[Any], size: tf.Tensor, *, are_rows_added_up: bool
) -> list[Any]:
    """Return the means of gradients over the examples of all replicas, in replica context.

    Args:
        gradients: The gradients of a replica.
        variables: Their variables.
        size: The number of the replica's examples.
        are_rows_added_up: Whether a replica may add up the slices of a row.
    """
    known = shaped(list(gradients), list(variables))
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    if replicas == 1:
        return known
    known = [with_values(gradient, lambda values: or_zero(values, size)) for gradient in known]
    known = slices_of_one_process(known, list(variables), are_added_up=are_rows_added_up)
    are_unique, are_shared = have_unique_rows(known), have_shared_rows(known)
    shared = shared_mean([OfLoss(known, size)], [], [], size=size)
    return with_replicas_added_up(with_rows_summed(shared.gradients, are_unique), are_shared, replicas)


def made_of_whole_batch(
    gradients: Sequence[Any], variables: Sequence[Any], size: tf.Tensor, known: Sequence[Any]
) -> list[Any]:
    """Return what a step has made of the known gradients of the whole batch, the same on all replicas.

    Gradients that it computes of these alone are the same already; of all others, the mean is taken.
    """
    known = [gradient for gradient in known if gradient is not None]
    made = list(gradients)
    others = [place for place, each in enumerate(made) if each is not None and not _is_made_of(each, known)]
    rows = {id(each.indices) for each in known if isinstance(each, tf.IndexedSlices)}
    in_known_rows = [
        place
        for place in others
        if isinstance(made[place], tf.IndexedSlices) and id(made[place].indices) in rows
    ]
    if in_known_rows:  # all replicas have these rows, so that values are averaged slice by slice
        values = [or_zero(made[place].values, size) for place in in_known_rows]
        means = shared_mean([OfLoss(values, size)], [], [], size=size).gradients
        for place, mean in zip(in_known_rows, means, strict=True):
            made[place] = tf.IndexedSlices(mean, made[place].indices, made[place].dense_shape)
    rest = [place for place in others if place not in in_known_rows]
    if rest:
        of_rest = [made[place] for place in rest], [variables[place] for place in rest]
        for place, mean in zip(rest, of_whole_batch(*of_rest, size, are_rows_added_up=False), strict=True):
            made[place] = mean
    return made


def _is_made_of(gradient: Any, known: Sequence[Any]) -> bool:
    """Return whether a gradient is computed of known ones and constants alone."""
    if tf.executing_eagerly():  # nothing shows how it was computed
        return any(gradient is other for other in known)
    of_known = {tensor.op for tensor in tensors_of(known)}
    return all(
        operation in of_known
        or (not operation.op_def.is_stateful and (operation.inputs or operation.type == "Const"))
        for operation in operations_behind(tensors_of(gradient), until=lambda each: each in of_known)
    )


def is_changed_in(gradients: Sequence[Any], applied: Sequence[Any]) -> bool:
    """Return whether a step does more with gradients of other graphs than to add them up or to scale them.

    Args:
        gradients: Those that it has computed in branches, loops and functions.
        applied: What it has passed to optimizers.
    """
    if not gradients:
        return False
    begun = [each for each in tensors_of(gradients) if each.dtype.is_floating]  # no indices of rows
    behind = operations_behind(tensors_of(applied), until=lambda each: each.type in _OTHER_GRAPHS)
    ends = [tensor for each in behind if each.type in _OTHER_GRAPHS for tensor in each.outputs]
    within = [followed(tensors, graph, _keeps) for graph, tensors in _by_graph(begun)]
    after = [followed(tensors, graph, _keeps) for graph, tensors in _by_graph(ends)]
    is_kept_after = all(
        of_graph.get(tensor.name, True) for of_graph in after for tensor in tensors_of(applied)
    )
    return not (is_kept_after and all(all(of_graph.values()) for of_graph in within))


def _by_graph(tensors: Sequence[tf.Tensor]) -> list[tuple[tf.Graph, list[tf.Tensor]]]:
    graphs = {id(tensor.graph): tensor.graph for tensor in tensors}
    return [(graph, [each for each in tensors if each.graph is graph]) for graph in graphs.values()]


def _keeps(operation: tf.Operation, depends: list[bool]) -> bool:
    return operation.type in _PLACES_ROWS or is_linear(operation, depends)


def is_read(gradient: Any) -> bool:
    """Return whether a step that was traced has read a gradient."""
    return any(tensor.consumers() for tensor in tensors_of(gradient))
