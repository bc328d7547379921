"""Return, inside a graph that the coordinator sends out, what depends on the worker that runs it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import dispatched_worker_index, value_when_sent

__all__ = ["outermost_graph", "value_for_worker", "worker_index"]


def worker_index() -> tf.Tensor:
    """Return the index of the worker that runs the graph in which this is called."""
    # Only the outermost function gets the index with the call; a loop or a branch has none.
    with outermost_graph().as_default():
        return dispatched_worker_index()


def value_for_worker(value: Callable[[int], int], key: str) -> tf.Tensor:
    """Return what the chief has for the worker that runs the graph in which this is called.

    Args:
        value: A function of the worker's index, which the chief calls whenever it sends the graph there.
        key: A name that no other value in the graph has.
    """
    with outermost_graph().as_default():
        return value_when_sent(value, key)


def outermost_graph() -> Any:
    """Return the graph of the called function, which encloses the graphs of its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return graph
