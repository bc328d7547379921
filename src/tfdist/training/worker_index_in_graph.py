"""Return, inside a graph that the coordinator sends out, the index of the worker that runs it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import dispatched_worker_index

__all__ = ["outermost_graph", "worker_index"]


def worker_index(note: Callable[[int], object] | None = None) -> tf.Tensor:
    """Return the index of the worker that runs the graph in which this is called.

    Args:
        note: A function that the chief calls with the index whenever it sends the graph to a worker.
    """
    # Only the outermost function gets the index with the call; a loop or a branch has none.
    with outermost_graph().as_default():
        return dispatched_worker_index(note)


def outermost_graph() -> Any:
    """Return the graph of the called function, which encloses the graphs of its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return graph
