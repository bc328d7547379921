"""Let the chief's servers know whether it has ended, or is gone.

The chief that ends by itself, well or not, leaves a mark in the memory of each server of its cluster: a file
in TensorFlow's `ram://`, written by an operation on that server, so that it takes neither a disk nor a port.
A server that finds its chief gone without the mark knows that it was killed, or lost with its machine.
"""

import atexit
import logging
import threading
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.eager import context, executor

__all__ = ["dismiss", "farewell_was_said", "say_farewell_at_exit", "was_dismissed", "withhold_farewell"]

_MARK = "ram://tfdist/chief-has-ended"
_DISMISSAL = "ram://tfdist/chief-needs-no-more"
_SECONDS = 10.0  # for a server that is silent
_log = logging.getLogger("tfdist")
_to_whom: set[str] = set()


def say_farewell_at_exit(devices: Sequence[str]) -> None:
    """Leave the mark on these tasks when this process ends."""
    if not _to_whom:
        # Those that are registered last are called first: TensorFlow is still whole then.
        atexit.register(_say_farewell)
    _to_whom.update(devices)


def withhold_farewell() -> None:
    """Leave no mark: this process ends to be started again."""
    _to_whom.clear()


def dismiss(devices: Sequence[str]) -> None:
    """Let these tasks end at once, though this process goes on."""
    _leave(_DISMISSAL, devices)


def was_dismissed() -> bool:
    """Say whether the chief has let this server go."""
    return bool(tf.io.gfile.exists(_DISMISSAL))


def farewell_was_said() -> bool:
    """Say whether the chief has left its mark here."""
    return bool(tf.io.gfile.exists(_MARK))


def _say_farewell() -> None:
    _leave(_MARK, sorted(_to_whom))


def _leave(mark: str, devices: Sequence[str]) -> None:
    # Made here: to make it on a remote device is to hold all threads of Python up where that is silent.
    words = tf.constant(mark), tf.constant("")
    # A thread for each, which a silent server holds up: only so long, and not beyond the end of the process.
    threads = [threading.Thread(target=_mark, args=(each, *words), daemon=True) for each in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)


def _mark(device: str, name: tf.Tensor, text: tf.Tensor) -> None:
    # An executor of its own, or the failure of one server would be taken for that of the next.
    try:
        with tf.device(device), context.executor_scope(executor.new_executor(enable_async=False)):
            tf.io.write_file(name, text)
    except tf.errors.OpError as error:
        _log.info("%s is gone already: %s", device, str(error).splitlines()[0])
