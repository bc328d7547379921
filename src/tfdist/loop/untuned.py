"""Keep tf.data's autotuner out of data sets, whose threads hold up those who let go of an iterator.

The thread that tunes an iterator waits between two times, in the end for a minute. When the iterator is let
go, it is woken and looks whether that is so. TensorFlow says so only after it has woken everybody: a thread
that looks too early waits on, for about as long as the iterator has lived, and holds up the one that lets go,
which holds Python's interpreter and with it everything in the process. Seen with TensorFlow 2.12 and 2.21, in
one to four of ten cases. Without the tuner, AUTOTUNE is one call in parallel for each core.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

__all__ = ["begin", "untuned"]


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Switch the autotuner off for a data set, unless somebody has switched it on."""
    # In a graph TensorFlow knows the options that were given there, and warns whoever asks.
    known = dataset.options() if tf.executing_eagerly() else dataset._options_attr
    if known.autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def begin(dataset: Any) -> Any:
    """Make an iterator of a distributed data set."""
    with _untuned_devices():
        return iter(dataset)


@contextlib.contextmanager
def _untuned_devices() -> Iterator[None]:
    """Switch the autotuner off for the data set that TensorFlow puts on each device, which has no options."""
    made = multi_device_iterator_ops._create_device_dataset
    multi_device_iterator_ops._create_device_dataset = lambda *given: untuned(made(*given))
    try:
        yield
    finally:
        multi_device_iterator_ops._create_device_dataset = made
