"""Distribute None, which stands for an optional input that is absent: TensorFlow distributes tensors only.

A data set of batches gets a placeholder for each None, and a step gets None again.
"""

import functools
from typing import Any

import tensorflow as tf

from tfdist.training.reduction import batch_size

__all__ = ["with_none", "with_placeholders"]


def with_placeholders(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set with a placeholder for each None in a batch."""
    if not any(isinstance(spec, type(_none())) for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def replaced(*parts: Any) -> Any:
        batch = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        # A matrix of no columns, which no layer takes, with a row for each example, to be split as they are.
        placeholder = tf.zeros([batch_size(batch), 0], tf.bool)
        return tf.nest.map_structure(lambda part: placeholder if part is None else part, batch)

    return dataset.map(replaced)


def with_none(batch: Any) -> Any:
    """Return a batch, of one replica or of all, with None for each placeholder; of a spec, with its spec."""
    return tf.nest.map_structure(_or_none, batch)


def _or_none(part: Any) -> Any:
    one = part.values[0] if isinstance(part, tf.distribute.DistributedValues) else part
    is_matrix = isinstance(one, (tf.Tensor, tf.TensorSpec)) and one.dtype == tf.bool and one.shape.rank == 2
    if not (is_matrix and one.shape[1] == 0):
        return part
    return _none() if isinstance(one, tf.TensorSpec) else None


@functools.cache
def _none() -> Any:
    """Return the spec that tf.data has for None."""
    return tf.data.Dataset.from_tensors((0, None)).element_spec[1]
