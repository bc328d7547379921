"""Check that the tensors of a batch have a row for each example, before replicas get parts of it.

TensorFlow splits a batch by the rows of its first tensor, and loses what others have more, without an error.
"""

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.training.data.dataset_workarounds import of_batch
from tfdist.training.data.inspect_dataset import contains_python, is_batched_last, zipped_batches
from tfdist.training.error_messages.uneven_rows import (
    OTHER_ROWS,
    UNEQUAL_PARTS,
    no_row_for_each_example,
    other_rows,
)

_log = logging.getLogger("tfdist")


def with_splittable_zips(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset | None:
    """Return a data set that zips batches of several sizes, of each of which each replica gets an equal part.

    It fails at a batch that does not split. None for other data sets.
    """
    zipped = zipped_batches(dataset)
    if not zipped:
        return None

    def checked(batch: Any) -> Any:
        rows = [_rows(part) for part in tf.nest.flatten(batch)]
        firsts, checks = [], []
        for each in zipped:
            of_one = tf.stack([rows.pop(0) for _ in tf.nest.flatten(each.element_spec)])
            checks.append(tf.debugging.Assert(tf.reduce_all(of_one == of_one[0]), [OTHER_ROWS, of_one], 100))
            firsts.append(of_one[0])
        sizes = tf.stack(firsts)
        checks.append(tf.debugging.Assert(tf.reduce_all(sizes % replicas == 0), [UNEQUAL_PARTS, sizes], 100))
        with tf.control_dependencies(checks):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    _log.info("the data set zips batches of several sizes: each replica gets its part of each of them")
    return dataset.map(of_batch(dataset, checked))


def with_equal_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set that fails at a batch whose tensors do not have the same number of rows.

    Raises:
        DataError: They never have.
    """
    tensors = tf.nest.flatten(dataset.element_spec)
    check_rows(tensors)
    is_known = len(tensors) == 1 or None not in _known_rows(tensors) or is_batched_last(dataset)
    if is_known and not contains_python(dataset):
        return dataset

    def checked(batch: Any) -> Any:
        sizes = tf.stack([_rows(part) for part in tf.nest.flatten(batch)])
        check = tf.debugging.Assert(tf.reduce_all(sizes == sizes[0]), [OTHER_ROWS, sizes], summarize=100)
        with tf.control_dependencies([check]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    return dataset.map(of_batch(dataset, checked))


def check_rows(tensors: Sequence[Any]) -> None:
    """Check the shapes of a batch's tensors, or of their specs.

    Raises:
        DataError: They do not have the same number of rows.
    """
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise no_row_for_each_example("a number without rows")
    known = {number for number in _known_rows(tensors) if number is not None}
    if len(known) > 1:
        raise other_rows(known)


def _known_rows(tensors: Sequence[Any]) -> set[int | None]:
    return {None if tensor.shape.rank is None else tensor.shape[0] for tensor in tensors}


def _rows(part: Any) -> tf.Tensor:
    if isinstance(part, tf.RaggedTensor):
        return tf.cast(part.nrows(), tf.int64)
    return part.dense_shape[0] if isinstance(part, tf.SparseTensor) else tf.shape(part, tf.int64)[0]
