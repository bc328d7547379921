"""Order the exchanges of a graph as the program has them, which is their order in all other tasks too.

TensorFlow keeps this order for stateful operations of one graph only: exchanges that overlap with the
computation are stateless for it, and what is in a branch may run before operations that come before the
branch. So each exchange depends on the one before it.
"""

import weakref
from dataclasses import dataclass

import tensorflow as tf

from tfdist._utils.tf_private import is_branch_or_loop

_CALLS = {"Case", "If", "PartitionedCall", "While"}


@dataclass
class _GraphExchanges:
    """The exchanges of a graph so far.

    Attributes:
        count: Their number, with those in functions that the graph calls.
        last_own: The name of the last operation that exchanges in the graph itself.
        is_last_called: Whether the last exchange of all is in a function that the graph calls.
    """

    count: int = 0
    last_own: str | None = None
    is_last_called: bool = False

    def note(self, own: str | None = None) -> None:
        """Note another exchange, by the name of its operation if that is in the graph itself."""
        self.count += 1
        self.last_own = own or self.last_own
        self.is_last_called = own is None


_exchanges_by_graph: weakref.WeakKeyDictionary[tf.Graph, _GraphExchanges] = weakref.WeakKeyDictionary()


def _exchanges_of(graph: tf.Graph) -> _GraphExchanges:
    return _exchanges_by_graph.setdefault(graph, _GraphExchanges())


def exchanges_before() -> list[tf.Operation]:
    """Return the operations of this graph that a new exchange has to wait for."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    exchanges, before = _exchanges_of(graph), []
    if exchanges.last_own is not None:
        before.append(graph.get_operation_by_name(exchanges.last_own))
    if exchanges.is_last_called:
        before += [operation for operation in graph.get_operations() if _is_call(operation)]
    # (A function may be called from other graphs too, and can take nothing from one of them.)
    if exchanges.last_own is None and is_branch_or_loop(graph):
        is_over = _mark_of_exchanges(graph.outer_graph)
        if is_over is not None:
            before.append(tf.identity(is_over).op)
    return before


def _mark_of_exchanges(graph: tf.Graph) -> tf.Tensor | None:
    """Return a tensor that a graph has when its exchanges so far are over; None if it has had none.

    A branch waits for the tensors that it takes from its graph, in whatever way TensorFlow runs it.
    """
    with graph.as_default():
        before = exchanges_before()
        if not before:
            return None
        with tf.control_dependencies(before):
            return tf.identity(tf.constant(True))


def note_exchange(result: tf.Tensor) -> None:
    """Note the last exchange of this graph, by one of its results."""
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    _exchanges_of(graph).note(result.op.name)
    while (graph := getattr(graph, "outer_graph", None)) is not None:
        _exchanges_of(graph).note()


def count_exchanges() -> int:
    """Return how many exchanges this graph has so far."""
    return _exchanges_of(tf.compat.v1.get_default_graph()).count


def _is_call(operation: tf.Operation) -> bool:
    return operation.type.removeprefix("Stateful").removeprefix("Stateless") in _CALLS
