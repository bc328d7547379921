"""The index of a worker, in a graph that the coordinator sends out."""

import tensorflow as tf

from tfdist._utils.tf_private import dispatched_worker_index, outermost_graph


def worker_index() -> tf.Tensor:
    """Return the index of the worker that runs the graph in which this is called."""
    # TensorFlow passes it with the call of the outermost function only, not to its loops and branches.
    with outermost_graph().as_default():
        return dispatched_worker_index()
