"""Wait until parameter servers have executed what the chief has written to variables."""

import threading
from concurrent.futures import Future, wait

import tensorflow as tf

from tfdist.coordination.calls_between_tasks import resolver_of
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.training.lost_task_errors import silent_tasks

_SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"
_SECONDS_BETWEEN_CHECKS = 1.0
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
    answered: Future[None] = Future()
    threading.Thread(target=_wait_for_answers, args=(len(servers), answered), daemon=True).start()
    with doing(_SETTLING):
        while not wait([answered], _SECONDS_BETWEEN_CHECKS).done:
            if silent_tasks(strategy, "ps"):  # the next step names them
                return
    answered.result()


def _wait_for_answers(servers: int, answered: "Future[None]") -> None:
    try:
        answers = []
        for index in range(servers):
            with tf.device(_SERVER.format(index)):
                answers.append(tf.timestamp())
        for answer in answers:
            answer.numpy()
    except Exception as error:  # noqa: BLE001  # the caller raises it
        answered.set_exception(error)
    else:
        answered.set_result(None)
