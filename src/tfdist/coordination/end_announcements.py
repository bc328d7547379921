"""Announce to other tasks that this one ends: the chief to its servers, and a server to its chief.

A chief that ends by itself, after success or failure, writes a mark into the memory of each server of its
cluster. A server that finds its chief gone and no mark knows that the chief was killed, or lost with its
machine. A server that is told to end writes a mark into its own memory, and the chief, which looks there,
saves everything first. A mark is a file in TensorFlow's `ram://`, written and found by operations on that
server. This takes neither a disk nor a port, and works wherever training works.
"""

import atexit
import logging
from collections.abc import Iterable

import tensorflow as tf

from tfdist._utils.tf_private import own_executor
from tfdist.cluster.config import Task
from tfdist.coordination.background_threads import TaskThreads
from tfdist.coordination.calls_between_tasks import call_each, fetch

_MARK = "ram://tfdist/told-to-end"
_ENDED_MARK = "ram://tfdist/chief-has-ended"
_DISMISSAL_MARK = "ram://tfdist/chief-needs-no-more"
_MARK_TIMEOUT = 10.0  # the longest wait for servers that do not answer
_SECONDS_BETWEEN_POLLS = 1.0
_servers: set[Task] = set()
_log = logging.getLogger("tfdist")


def announce_termination() -> None:
    """Tell the chief that this server ends soon."""
    with tf.io.gfile.GFile(_MARK, "w") as mark:
        mark.write("")  # creates the file: opening and closing it does not


class ServerTermination(TaskThreads):
    """Poll, for as long as the block lasts, whether a server is about to end.

    Attributes:
        is_announced: Whether at least one server is about to end.
    """

    def __init__(self, servers: Iterable[Task]) -> None:
        """Store the servers that the chief needs to continue."""
        super().__init__(self._poll, servers)
        self.is_announced = False

    def _poll(self, server: Task) -> None:
        mark = tf.constant(_MARK)
        # A separate executor, so that these operations and those of the training do not wait for each other.
        with own_executor():
            while not self.is_over.wait(_SECONDS_BETWEEN_POLLS):
                try:
                    with tf.device(server.cpu):
                        matches = tf.raw_ops.MatchingFiles(pattern=mark)
                    is_due = len(fetch(matches)) > 0
                except tf.errors.OpError as error:
                    # The training itself notices a server that is gone. A connection may be cut in this
                    # call alone.
                    _log.debug("%s cannot be asked: %s", server, error)
                    continue
                if is_due:
                    _log.warning("%s was told to end: saving everything", server)
                    self.is_announced = True
                    return


def shut_servers_down_at_exit(servers: Iterable[Task]) -> None:
    """Write the mark on these tasks when this process ends."""
    if not _servers:
        # Functions that are registered last run first, while TensorFlow still works.
        atexit.register(lambda: _write_mark_on_all(_ENDED_MARK, sorted(_servers)))
    _servers.update(servers)


def keep_servers_at_exit() -> None:
    """Write no mark at exit: this process ends to be started again."""
    _servers.clear()


def dismiss(servers: Iterable[Task]) -> None:
    """Tell these tasks to end at once, although this process continues."""
    _write_mark_on_all(_DISMISSAL_MARK, servers)


def was_dismissed() -> bool:
    """Return whether the chief has told this server to end."""
    return bool(tf.io.gfile.exists(_DISMISSAL_MARK))


def is_shutdown_told() -> bool:
    """Return whether the chief has written its mark on this server."""
    return bool(tf.io.gfile.exists(_ENDED_MARK))


def _write_mark_on_all(mark: str, servers: Iterable[Task]) -> None:
    # Made on this task: making a constant on a remote device blocks all Python threads while that task is
    # silent.
    name, text = tf.constant(mark), tf.constant("")

    def write(server: Task) -> None:
        with tf.device(server.cpu):
            tf.io.write_file(name, text)

    call_each(write, servers, _MARK_TIMEOUT)
