"""Load TensorFlow without its notes, which no variable silences since 2.20."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator

from tfdist._utils.redirected_output import redirected
from tfdist.launcher.screen_filter import ScreenFilter
from tfdist.launcher.share_cores_and_gpus import own_gpus

_log = logging.getLogger("tfdist")
_LEVELS_OF_ERRORS = ("2", "3")  # of TF_CPP_MIN_LOG_LEVEL: who asks for more gets the notes too


def load_tensorflow_quietly() -> None:
    """Import TensorFlow, and let it look for GPUs, so that both are done when the user reads on."""
    is_quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL") in _LEVELS_OF_ERRORS
    if "tensorflow" in sys.modules or not is_quiet or not hasattr(os, "fork"):
        return
    with _standard_error_without_notes():
        import tensorflow as tf

        if not own_gpus():  # a GPU's notes are worth reading, and its memory is not ours to touch here
            tf.config.list_physical_devices()


@contextlib.contextmanager
def _standard_error_without_notes() -> Iterator[None]:
    """Pass what is written to standard error in the block through a filter in a process of its own.

    So the last words of a TensorFlow that ends this process, as on a processor without AVX, are not lost.
    """
    sys.stderr.flush()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _filter(readable, writable)
    os.close(readable)
    try:
        with redirected(2, writable):
            yield
            sys.stderr.flush()
    finally:
        os.close(writable)
        os.waitpid(child, 0)


def _filter(readable: int, writable: int) -> None:
    """Write what arrives to standard error once it ends, without the notes, and end this process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process
        os.close(writable)
        with open(readable, "rb") as file:
            text = file.read().decode(errors="replace")
        with open(2, "wb", closefd=False) as out:
            out.write(ScreenFilter(is_live=False, verbosity=0).without(text, "").encode())
    finally:
        os._exit(0)
