"""Keep tf.data's autotuner out of data sets, whose threads hold up those who let go of an iterator.

The thread that tunes an iterator waits between two times, in the end for a minute. When the iterator is let
go, it is woken and looks whether that is so. TensorFlow says so only after it has woken everybody: a thread
that looks too early waits on, for about as long as the iterator has lived, and holds up the one that lets go,
which holds Python's interpreter and with it everything in the process. Seen with TensorFlow 2.12 and 2.21, in
one to four of ten cases. Without the tuner, AUTOTUNE is one call in parallel for each core.
"""

import tensorflow as tf

__all__ = ["untuned"]


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Switch the autotuner off for a data set, unless somebody has switched it on."""
    # In a graph TensorFlow knows the options that were given there, and warns whoever asks.
    known = dataset.options() if tf.executing_eagerly() else dataset._options_attr
    if known.autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
