"""Split global batches with sparse tensors among the replicas.

TensorFlow fails to split them where a replica gets no example.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.training.reduction import batch_size

__all__ = ["contains_sparse", "replica_batches"]


def contains_sparse(dataset: tf.data.Dataset) -> bool:
    """Return whether the batches contain sparse tensors."""
    return any(isinstance(spec, tf.SparseTensorSpec) for spec in tf.nest.flatten(dataset.element_spec))


def replica_batches(dataset: tf.data.Dataset) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Return a function that makes the replica batches of one input pipeline's part of each global batch."""

    def own(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = context.num_replicas_in_sync
        here = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * here

        def parts(*batch: Any) -> tf.data.Dataset:
            data = batch if isinstance(dataset.element_spec, tuple) else batch[0]
            indices = tf.data.Dataset.range(first, first + here)
            return indices.map(lambda index: _part(data, index, replicas))

        return dataset.flat_map(parts)

    return own


def _part(data: Any, index: tf.Tensor, replicas: int) -> Any:
    """Return a replica's part of a batch; the first replicas get the examples that are left over."""
    size = tf.cast(batch_size(data), tf.int64)
    least, more = size // replicas, size % replicas
    begin = index * least + tf.minimum(index, more)
    count = least + tf.cast(index < more, tf.int64)
    return tf.nest.map_structure(lambda value: _rows(value, begin, count), data)


def _rows(value: Any, begin: tf.Tensor, count: tf.Tensor) -> Any:
    if not isinstance(value, tf.SparseTensor):
        return value[begin : begin + count]
    others = tf.zeros([value.shape.rank - 1], tf.int64)
    rows = tf.sparse.slice(
        value,
        tf.concat([[begin], others], axis=0),
        tf.concat([[count], value.dense_shape[1:]], axis=0),
    )
    rows.set_shape([None, *value.shape[1:]])
    return rows
