"""Tell, inside a graph that the coordinator sends out, which worker runs it."""

import tensorflow as tf

__all__ = ["worker_index"]


def worker_index() -> tf.Tensor:
    """Give the index of the worker that runs the graph in which this is called."""
    # The index comes with the call of the outermost function: within a loop or a branch there is none.
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    with graph.as_default():
        return _worker_index()


def _worker_index() -> tf.Tensor:
    current = getattr(tf.distribute.coordinator, "experimental_get_current_worker_index", None)
    if current is not None:
        return current()
    # TensorFlow before 2.13 has the parts that the public function is made of, and not the function.
    from tensorflow.python.distribute.coordinator import coordinator_context

    return tf.compat.v1.get_default_graph().capture_call_time_value(
        lambda: coordinator_context.get_current_dispatch_context().worker_index,
        tf.TensorSpec([], tf.int64),
        key="worker_index",
    )
