"""Let the chief know that one of its servers was told to end, so that it saves everything first.

The server leaves a mark in its own memory, a file in TensorFlow's `ram://`, and the chief looks for it by an
operation on that server: so it takes neither a disk nor a port, and works wherever training does.
"""

import logging
import threading
from collections.abc import Iterable

import tensorflow as tf
from tensorflow.python.eager import context, executor

from tfdist.calls import fetch
from tfdist.cluster import Task

__all__ = ["Departures", "announce_departure"]

_MARK = "ram://tfdist/told-to-end"
_SECONDS_BETWEEN_LOOKS = 1.0
_log = logging.getLogger("tfdist")


def announce_departure() -> None:
    """Say that this server will end soon."""
    with tf.io.gfile.GFile(_MARK, "w") as mark:
        mark.write("")  # makes the file: to open and close it does not


class Departures:
    """Look, for as long as the block lasts, whether a server was told to end.

    Attributes:
        are_due: Whether one was.
    """

    def __init__(self, servers: Iterable[Task]) -> None:
        """Say which servers are needed for going on."""
        self.are_due = False
        self._is_over = threading.Event()
        # A thread for each: an operation on a server that is silent does not return.
        self._threads = [
            threading.Thread(target=self._look_at, args=(task,), daemon=True) for task in servers
        ]

    def __enter__(self) -> "Departures":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _look_at(self, server: Task) -> None:
        mark = tf.constant(_MARK)
        # An executor of its own, so that the training's operations and these do not wait for each other.
        with context.executor_scope(executor.new_executor(enable_async=False)):
            while not self._is_over.wait(_SECONDS_BETWEEN_LOOKS):
                try:
                    with tf.device(f"/job:{server.type}/replica:0/task:{server.index}/device:CPU:0"):
                        found = tf.raw_ops.MatchingFiles(pattern=mark)
                    is_due = len(fetch(found)) > 0
                except tf.errors.OpError as error:  # it is gone, which the training finds out by itself
                    _log.debug("%s cannot be asked: %s", server, error)
                    return
                if is_due:
                    _log.warning("%s was told to end: saving everything", server)
                    self.are_due = True
                    return
