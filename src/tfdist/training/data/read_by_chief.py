"""Read data on the chief, and send each batch to the asynchronous worker that computes on it.

Workers cannot read some data themselves: Python code exists in one process only, and a graph with more than
2 GB of arrays cannot be sent.
"""

import logging
from dataclasses import dataclass

import tensorflow as tf

from tfdist.training.data.dataset_workarounds import copied_from_python, untuned
from tfdist.training.data.inspect_dataset import contains_python, is_too_large_to_send

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class ChiefData:
    """A data set that the chief reads."""

    dataset: tf.data.Dataset

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> "ChiefData":
        """Return the data set, prepared for reading."""
        return cls(untuned(copied_from_python(dataset)))


def chief_must_read(dataset: tf.data.Dataset) -> bool:
    """Return whether workers cannot read a data set, and say so in the log."""
    if is_too_large_to_send(dataset):
        reason = "more than 2 GB of arrays"
    elif contains_python(dataset):
        reason = "Python code"
    else:
        return False
    _log.info("the chief reads the data, which contain %s, and sends each batch to a worker", reason)
    return True
