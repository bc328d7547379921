"""Wait until parameter servers have executed what the chief has written to variables."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait

import tensorflow as tf

from tfdist.coordination.calls_between_tasks import addresses_of
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.training.error_messages.lost_task_errors import silent_tasks

_SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"
_SECONDS_BETWEEN_CHECKS = 1.0
# A callback may have metrics stored after each batch, and listing 1,000 tasks takes milliseconds.
_server_counts = weakref.WeakKeyDictionary[tf.distribute.Strategy, int]()
_SETTLING = Activity("waiting until the parameter servers have executed its writes", "at_each_step")


def settle_writes(strategy: tf.distribute.Strategy) -> None:
    """Wait until the parameter servers, if any, have executed all writes of this process to variables.

    TensorFlow sends an assignment to a server and does not wait for it. A graph that starts meanwhile reads
    the variable by another way, and may get the value before. A server executes the operations of one process
    in their order, so an answer to a later operation says that the writes are done.
    """
    if servers := _server_count(strategy):
        _wait_unless_silent(strategy, lambda: _ask(servers))


def write_to_servers(strategy: tf.distribute.Strategy, write: Callable[[], None]) -> None:
    """Call a function that writes to variables; without an end to it if a parameter server is silent."""
    if _server_count(strategy):
        _wait_unless_silent(strategy, write)
    else:
        write()


def _server_count(strategy: tf.distribute.Strategy) -> int:
    if strategy not in _server_counts:
        _server_counts[strategy] = sum(task.type == "ps" for task in addresses_of(strategy))
    return _server_counts[strategy]


def _wait_unless_silent(strategy: tf.distribute.Strategy, call: Callable[[], None]) -> None:
    """Wait for a call to the servers, or until one of them is silent, which the next step names."""
    answered: Future[None] = Future()
    threading.Thread(target=_answer, args=(call, answered), daemon=True).start()
    with doing(_SETTLING):
        while not wait([answered], _SECONDS_BETWEEN_CHECKS).done:
            if silent_tasks(strategy, "ps"):
                return
    answered.result()


def _answer(call: Callable[[], None], answered: "Future[None]") -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # the caller raises it
        answered.set_exception(error)
    else:
        answered.set_result(None)


def _ask(servers: int) -> None:
    answers = []
    for index in range(servers):
        with tf.device(_SERVER.format(index)):
            answers.append(tf.timestamp())
    for answer in answers:
        answer.numpy()
