"""Connect a process to its cluster: wait for the other tasks, and report in one line what fails."""

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tfdist._utils.tf_private import connected_tasks, servers_keep_state
from tfdist.cluster.addresses_and_free_ports import is_free, port_taken, split_address
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import keep_servers_at_exit
from tfdist.coordination.only_peers import admitting_only_peers
from tfdist.coordination.rendezvous import hold_rendezvous, marks_of
from tfdist.coordination.wait_for_tasks import await_servers
from tfdist.errors import TaskLost, first_line
from tfdist.launcher.environment import reach_directly
from tfdist.launcher.send_reports import report_joined

_FUNCTIONS_PER_TASK = 4  # more than training makes: most of its functions are in one task as a whole


@contextlib.contextmanager
def connecting(
    where: str, cluster: ClusterConfig, shared: Mapping[str, object] | None, *, timeout: float
) -> Iterator[None]:
    """Wait for the whole cluster before the block connects TensorFlow; report a taken port in one line.

    Args:
        where: The function that connects, for error messages.
        cluster: The cluster, and this process's task.
        shared: Settings that all tasks must share, by name; None if the others serve this one.
        timeout: Seconds that the other tasks may take to start.
    """
    report_joined()
    training = cluster.training()
    try:
        with contextlib.ExitStack() as stack:
            connects = training.task in training.tasks() and len(training.tasks()) > 1 and not is_connected()
            if connects:
                reach_directly(cluster)
                stack.enter_context(admitting_only_peers(cluster))
                _await_all(where, training, shared, timeout)
                stack.enter_context(servers_keep_state())
            yield
            if connects and shared is None:
                _make_room_for_functions(training)
    except (tf.errors.UnknownError, tf.errors.InternalError, tf.errors.AlreadyExistsError) as error:
        if "gRPC server" not in str(error) or training.task is None:
            raise
        raise port_taken(str(training.task), training.address(training.task)) from error
    except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError) as error:
        keep_servers_at_exit()  # which wait for this process to start again
        problem = f"lost a task as TensorFlow connected all: {first_line(error)}"
        raise TaskLost(where, problem, remedy="Start the cluster again") from error


def _await_all(
    where: str, training: ClusterConfig, shared: Mapping[str, object] | None, timeout: float
) -> None:
    task = training.task
    # TensorFlow 2.12 would crash.
    if task is not None and not is_free(split_address(training.address(task))[1]):
        raise port_taken(str(task), training.address(task))
    if shared is None:
        others = [task for task in training.tasks() if task.type != "chief"]
        await_servers(where, training, others, timeout)
    else:
        hold_rendezvous(training, marks_of(training, shared), timeout=timeout)


def _make_room_for_functions(training: ClusterConfig) -> None:
    """Grow TensorFlow's vector of functions that are partly in other tasks, before threads use it.

    TensorFlow reads an entry of this vector without its lock. If another thread adds an entry meanwhile, and
    the vector moves, the call takes what it reads from freed memory: it names a device in random bytes, and
    fails. A vector that has grown keeps its room: for twice as many functions as are made here, less two.
    """
    server = next(task for task in training.tasks() if task != training.task)
    with tf.device(server.cpu):
        there = tf.raw_ops.MatchingFiles(pattern=tf.constant("/"))
    functions = 1 + 2 ** (_FUNCTIONS_PER_TASK * len(training.tasks()) - 1).bit_length()
    with tf.device(tf.config.list_logical_devices("CPU")[0].name):
        for number in range(functions):  # a message is a part of a function's name
            tf.raw_ops.PreventGradient(input=there, message=str(number))


def is_connected() -> bool:
    """Return whether this process was connected before: its server then still runs."""
    return connected_tasks() is not None
