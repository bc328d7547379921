"""Mark the end of the chief, so that its servers can tell a chief that has ended from one that is lost.

A chief that ends by itself, after success or failure, writes a mark into the memory of each server of its
cluster. The mark is a file in TensorFlow's `ram://`, written by an operation on that server, so it takes
neither a disk nor a port. A server that finds its chief gone and no mark knows that the chief was killed,
or lost with its machine.
"""

import atexit
from collections.abc import Sequence

import tensorflow as tf

from tfdist.coordination.thread_per_task import call_each

__all__ = [
    "dismiss",
    "is_shutdown_told",
    "keep_servers_at_exit",
    "shut_servers_down_at_exit",
    "was_dismissed",
]

_ENDED_MARK = "ram://tfdist/chief-has-ended"
_DISMISSAL_MARK = "ram://tfdist/chief-needs-no-more"
_MARK_TIMEOUT = 10.0  # the longest wait for servers that do not answer
_devices: set[str] = set()


def shut_servers_down_at_exit(devices: Sequence[str]) -> None:
    """Write the mark on these tasks when this process ends."""
    if not _devices:
        # Functions that are registered last run first, while TensorFlow still works.
        atexit.register(_mark_servers)
    _devices.update(devices)


def keep_servers_at_exit() -> None:
    """Write no mark at exit: this process ends to be started again."""
    _devices.clear()


def dismiss(devices: Sequence[str]) -> None:
    """Tell these tasks to end at once, although this process continues."""
    _write_mark_on_all(_DISMISSAL_MARK, devices)


def was_dismissed() -> bool:
    """Return whether the chief has told this server to end."""
    return bool(tf.io.gfile.exists(_DISMISSAL_MARK))


def is_shutdown_told() -> bool:
    """Return whether the chief has written its mark on this server."""
    return bool(tf.io.gfile.exists(_ENDED_MARK))


def _mark_servers() -> None:
    _write_mark_on_all(_ENDED_MARK, sorted(_devices))


def _write_mark_on_all(mark: str, devices: Sequence[str]) -> None:
    # Made on this task: making a constant on a remote device blocks all Python threads while that task is
    # silent.
    name, text = tf.constant(mark), tf.constant("")

    def write(device: str) -> None:
        with tf.device(device):
            tf.io.write_file(name, text)

    call_each(write, devices, _MARK_TIMEOUT)
