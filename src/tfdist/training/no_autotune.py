"""Switch off tf.data's autotuner, whose thread can block the process when an iterator is deleted.

The tuning thread of an iterator sleeps between two rounds, in the end for a minute. When the iterator is
deleted, TensorFlow wakes the thread before it sets the flag that ends it. A thread that reads the flag too
early sleeps again, for about as long as the iterator has lived. Meanwhile the deleting thread waits for it
and holds Python's interpreter lock, which stops the whole process. Seen with TensorFlow 2.12 and 2.21, in one
to four of ten cases. Without the autotuner, AUTOTUNE means one parallel call for each core.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist._utils.tf_private import dataset_options, device_datasets_made_by

__all__ = ["untuned", "untuned_on_devices"]


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set without the autotuner, unless its options already say whether to use it."""
    if dataset_options(dataset).autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextlib.contextmanager
def untuned_on_devices() -> Iterator[None]:
    """Switch off the autotuner also in the data sets with which TensorFlow fetches batches to devices."""
    with device_datasets_made_by(untuned):
        yield
