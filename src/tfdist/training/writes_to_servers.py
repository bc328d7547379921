"""Wait until parameter servers have executed what the chief has written to variables."""

import tensorflow as tf

from tfdist.coordination.calls_between_tasks import resolver_of
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing

__all__ = ["settle_writes"]

_SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"
_SETTLING = Activity("waiting until the parameter servers have executed its writes", "at_each_step")


def settle_writes(strategy: tf.distribute.Strategy) -> None:
    """Wait until the parameter servers, if any, have executed all writes of this process to variables.

    TensorFlow sends an assignment to a server and does not wait for it. A graph that starts meanwhile reads
    the variable by another way, and may get the value before. A server executes the operations of one process
    in their order, so an answer to a later operation says that the writes are done.
    """
    resolver = resolver_of(strategy)
    servers = [] if resolver is None else resolver.cluster_spec().as_dict().get("ps", [])
    if not servers:
        return
    with doing(_SETTLING):
        answers = []
        for index in range(len(servers)):
            with tf.device(_SERVER.format(index)):
                answers.append(tf.timestamp())
        for answer in answers:
            answer.numpy()
