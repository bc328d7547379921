"""Run the exchanges of a graph in the order of the program, which is the same in all tasks.

TensorFlow keeps this order for stateful operations only. Exchanges that overlap with the computation are
stateless for TensorFlow, so each exchange depends on the one before it.
"""

import weakref

import tensorflow as tf

__all__ = ["count_exchanges", "exchanges_before", "note_exchange"]

# The names of the exchanges of each graph; None for one that is in a function that the graph calls.
_names_by_graph: weakref.WeakKeyDictionary[tf.Graph, list[str | None]] = weakref.WeakKeyDictionary()
_CALLS = {"Case", "If", "PartitionedCall", "While"}


def exchanges_before() -> list[tf.Operation]:
    """Return the operations of this graph that a new exchange has to wait for."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    names = _names_by_graph.get(graph, [])
    if not names:
        return []
    if names[-1] is not None:
        return [graph.get_operation_by_name(names[-1])]
    return [operation for operation in graph.get_operations() if _is_call(operation)]


def note_exchange(result: tf.Tensor) -> None:
    """Note the last exchange of this graph, by one of its results."""
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    _names_by_graph.setdefault(graph, []).append(result.op.name)
    while (graph := getattr(graph, "outer_graph", None)) is not None:
        _names_by_graph.setdefault(graph, []).append(None)


def count_exchanges() -> int:
    """Return how many exchanges this graph has so far."""
    if tf.executing_eagerly():
        return 0
    return len(_names_by_graph.get(tf.compat.v1.get_default_graph(), []))


def _is_call(operation: tf.Operation) -> bool:
    return operation.type.removeprefix("Stateful").removeprefix("Stateless") in _CALLS
