"""Tell the chief that one of its servers is about to end, so that the chief saves everything first.

The server writes a mark into its own memory, as a file in TensorFlow's `ram://`. The chief looks for the
mark with an operation on that server. This takes neither a disk nor a port, and works wherever training
works.
"""

import logging
from collections.abc import Iterable

import tensorflow as tf

from tfdist._utils.tf_private import own_executor
from tfdist.cluster.config import Task
from tfdist.coordination.calls_between_tasks import fetch
from tfdist.coordination.thread_per_task import TaskThreads

__all__ = ["ServerTermination", "announce_termination"]

_MARK = "ram://tfdist/told-to-end"
_SECONDS_BETWEEN_POLLS = 1.0
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
                    with tf.device(f"/job:{server.type}/replica:0/task:{server.index}/device:CPU:0"):
                        matches = tf.raw_ops.MatchingFiles(pattern=mark)
                    is_due = len(fetch(matches)) > 0
                except tf.errors.OpError as error:  # the server is gone: the training itself notices that
                    _log.debug("%s cannot be asked: %s", server, error)
                    return
                if is_due:
                    _log.warning("%s was told to end: saving everything", server)
                    self.is_announced = True
                    return
