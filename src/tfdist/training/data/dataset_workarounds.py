"""Prepare the data sets of users for TensorFlow to distribute, where it would fail, block or go wrong."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import dataset_options, device_datasets_made_by
from tfdist.training.data.inspect_dataset import contains_python
from tfdist.training.replicas.reduction import batch_size


def of_batch(dataset: tf.data.Dataset, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of a batch as tf.data calls it: with the parts of a tuple that is not a named one."""

    def of_parts(*parts: Any) -> Any:
        return change(parts if type(dataset.element_spec) is tuple else parts[0])

    return of_parts


# -- optional inputs that are None: TensorFlow distributes tensors only --


def with_placeholders(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set with a placeholder for each None in a batch."""
    if not any(isinstance(spec, type(_none())) for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def replaced(batch: Any) -> Any:
        # A matrix of no columns, which no layer takes, with a row for each example, to be split as they are.
        placeholder = tf.zeros([batch_size(batch), 0], tf.bool)
        return tf.nest.map_structure(lambda part: placeholder if part is None else part, batch)

    return dataset.map(of_batch(dataset, replaced))


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


# -- arrays of Python --


def copied_from_python(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set that copies the elements that Python code in it yields, if there is such code.

    TensorFlow uses NumPy's memory as its own: a step may write to an array that a generator has yielded.
    """
    if not contains_python(dataset):
        return dataset

    def copied(batch: Any) -> Any:
        return tf.nest.map_structure(_copied, batch, expand_composites=True)

    return dataset.map(of_batch(dataset, copied))


def _copied(part: tf.Tensor | None) -> tf.Tensor | None:
    if part is None:  # an optional input
        return None
    is_number = part.dtype.is_floating or part.dtype.is_integer
    return tf.ensure_shape(tf.raw_ops.DeepCopy(x=part), part.shape) if is_number else part


# -- tf.data's autotuner, whose thread can block the process when an iterator is deleted --


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set without tf.data's autotuner, unless its options already say whether to use it.

    The tuning thread of an iterator sleeps between two rounds, in the end for a minute. When the iterator is
    deleted, TensorFlow wakes the thread before it sets the flag that ends it. A thread that reads the flag
    too early sleeps again, for about as long as the iterator has lived. Meanwhile the deleting thread waits
    for it and holds Python's interpreter lock, which stops the whole process. Seen with TensorFlow 2.12 and
    2.21, in one to four of ten cases. Without the autotuner, AUTOTUNE means one parallel call for each core.
    """
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


# -- batches that TensorFlow does not split: sparse tensors where a replica gets no example, other sizes --


def contains_sparse(dataset: tf.data.Dataset) -> bool:
    """Return whether the batches contain sparse tensors."""
    return any(isinstance(spec, tf.SparseTensorSpec) for spec in tf.nest.flatten(dataset.element_spec))


def replica_batches(dataset: tf.data.Dataset) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Return a function that makes the replica batches of one input pipeline's part of each global batch."""

    def own(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = context.num_replicas_in_sync
        here = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * here

        def parts(batch: Any) -> tf.data.Dataset:
            indices = tf.data.Dataset.range(first, first + here)
            return indices.map(lambda index: _part(batch, index, replicas))

        return dataset.flat_map(of_batch(dataset, parts))

    return own


def _part(data: Any, index: tf.Tensor, replicas: int) -> Any:
    """Return a replica's part of a batch; the first replicas get the examples that are left over."""
    return tf.nest.map_structure(lambda value: _rows(value, index, replicas), data)


def _rows(value: Any, index: tf.Tensor, replicas: int) -> Any:
    size = tf.cast(batch_size(value), tf.int64)
    least, more = size // replicas, size % replicas
    begin = index * least + tf.minimum(index, more)
    count = least + tf.cast(index < more, tf.int64)
    if not isinstance(value, tf.SparseTensor):
        return value[begin : begin + count]
    others = tf.zeros([value.shape.rank - 1], tf.int64)
    rows = tf.sparse.slice(
        value, tf.concat([[begin], others], axis=0), tf.concat([[count], value.dense_shape[1:]], axis=0)
    )
    rows.set_shape([None, *value.shape[1:]])
    return rows
