"""Reach, in a graph that the coordinator sends out, what depends on the worker that runs it.

TensorFlow passes these values with the call of the outermost function only, not to its loops and branches.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.temporary_patches import attributes_set
from tfdist._utils.tf_private import DistributedTable, dispatched_worker_index


def worker_index() -> tf.Tensor:
    """Return the index of the worker that runs the graph in which this is called."""
    # Only the outermost function gets the index with the call; a loop or a branch has none.
    with outermost_graph().as_default():
        return dispatched_worker_index()


def outermost_graph() -> Any:
    """Return the graph of the called function, which encloses the graphs of its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return graph


_PATCHING = threading.RLock()


@contextlib.contextmanager
def tables_in_loops() -> Iterator[None]:
    """Make lookup tables usable in loops and branches of the graph that is traced in this block.

    Under ParameterServerStrategy each worker has a copy of every table, and passes its copy to the graph with
    the call. TensorFlow does not pass it on to a loop or a branch, and the table has no value there.
    """
    original: Any = DistributedTable.resource_handle

    def resource_handle(table: Any) -> Any:
        with outermost_graph().as_default():
            return original.fget(table)

    with _PATCHING, attributes_set(DistributedTable, resource_handle=property(resource_handle)):
        yield
