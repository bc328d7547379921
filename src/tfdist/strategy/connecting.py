"""Connect a process to its cluster: wait for the other tasks, and say plainly what fails."""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdist.addresses import is_free, port_taken, split_address
from tfdist.awaiting import await_servers
from tfdist.cluster import ClusterConfig
from tfdist.errors import TaskLost
from tfdist.rollcall import fingerprint, hold_roll_call

__all__ = ["connecting", "is_connected"]


@contextlib.contextmanager
def connecting(
    where: str, cluster: ClusterConfig, shared: Sequence[object] | None, *, timeout: float
) -> Iterator[None]:
    """Have the whole cluster there before TensorFlow looks for it, and a taken port told in one line.

    Args:
        where: Who connects, for messages.
        cluster: The cluster, and this process's task.
        shared: Settings that all tasks must share; None where the others serve this one.
        timeout: Seconds that the other tasks may take.
    """
    training = cluster.training()
    is_one_of_many = training.task in training.tasks() and len(training.tasks()) > 1
    if is_one_of_many and not is_connected():
        _check_port(training)
        if shared is None:
            others = [task for task in training.tasks() if task.type != "chief"]
            await_servers(where, training, others, timeout)
        else:
            hold_roll_call(training, fingerprint(training, *shared), timeout=timeout)
    try:
        yield
    except (tf.errors.UnknownError, tf.errors.InternalError, tf.errors.AlreadyExistsError) as error:
        if "gRPC server" not in str(error) or training.task is None:
            raise
        raise port_taken(str(training.task), training.address(training.task)) from error
    except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError) as error:
        problem = f"lost a task as TensorFlow connected all: {str(error).splitlines()[0]}"
        raise TaskLost(where, problem, remedy="Start the cluster again") from error


def is_connected() -> bool:
    """Say whether this process has been connected before, whose server it still runs."""
    from tensorflow.python.eager import context

    return context.get_server_def() is not None


def _check_port(cluster: ClusterConfig) -> None:
    """Look whether the port is free before TensorFlow 2.12 does, which crashes where it is not."""
    task = cluster.task
    if task is not None and not is_free(split_address(cluster.address(task))[1]):
        raise port_taken(str(task), cluster.address(task))
