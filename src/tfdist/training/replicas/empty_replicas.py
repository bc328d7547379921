"""Compute zeros, or nothing, on a replica that has no examples.

TensorFlow gives empty batches to replicas whose data end before the others', and a mean over no examples is
NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_UNKNOWN_LENGTH = 32  # enough for most convolutions


def if_any(
    compute: Callable[[], Any],
    size: tf.Tensor,
    slices: Callable[[Any], Sequence[tf.Tensor]] = lambda _: (),
) -> Any:
    """Return, in a graph, what this replica computes from its examples, or zeros if it has none.

    `slices` returns the tensors of the result that then have no rows, whatever their static shape.
    """
    traced: list[Any] = []

    def flat() -> list[tf.Tensor]:
        traced[:] = [compute()]
        return [
            tf.convert_to_tensor(part)
            for part in tf.nest.flatten(traced[0], expand_composites=True)
            if part is not None
        ]

    def zeros() -> list[tf.Tensor]:
        without_rows = {id(tensor) for tensor in slices(traced[0])}
        return [
            tf.zeros([0, *_sizes(part)[1:]] if id(part) in without_rows else _sizes(part), part.dtype)
            for part in tf.nest.flatten(traced[0], expand_composites=True)
            if part is not None
        ]

    # TensorFlow traces the true branch first, which shows the false branch what shapes to return.
    values = iter(tf.cond(size > 0, flat, zeros))
    parts = tf.nest.flatten(traced[0], expand_composites=True)
    return tf.nest.pack_sequence_as(
        traced[0], [None if part is None else next(values) for part in parts], expand_composites=True
    )


def _sizes(tensor: tf.Tensor) -> list[int]:
    return [size or 0 for size in tensor.shape]


def computed_or_zero(compute: Callable[[], Any], size: tf.Tensor) -> Any:
    """Return what a replica computes, with zeros in the place of values that come from no examples.

    The replica computes in any case, as it must if replicas exchange values inside the model.
    """

    def kept(value: Any) -> Any:
        if value is None or not value.dtype.is_floating:  # such as the indices of a sparse gradient
            return value
        return or_zero(value, size)  # a mean over no examples is NaN

    return tf.nest.map_structure(kept, compute(), expand_composites=True)


def or_zero(value: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return a value, or zero on a replica that has no examples."""
    return tf.where(size > 0, value, tf.zeros_like(value))


def with_an_example(data: Any, size: tf.Tensor) -> Any:
    """Return the data, or one example of zeros if a replica has none: layers refuse an empty batch."""
    return tf.nest.map_structure(lambda part: None if part is None else _with_an_example(part, size), data)


def _with_an_example(part: Any, size: tf.Tensor) -> Any:
    missing = tf.cast(tf.equal(size, 0), tf.int64)
    if isinstance(part, tf.RaggedTensor):
        empty_row = tf.RaggedTensor.from_row_lengths(
            part[:0].flat_values, [tf.zeros([], part.row_splits.dtype)]
        )
        return tf.concat([part, empty_row], axis=0)[: tf.maximum(part.nrows(), 1)]
    if isinstance(part, tf.SparseTensor):
        shape = tf.concat([part.dense_shape[:1] + missing, part.dense_shape[1:]], axis=0)
        return tf.SparseTensor(part.indices, part.values, shape)
    shape = tf.concat([missing[tf.newaxis], _shape_elsewhere(part)], axis=0)
    return tf.ensure_shape(tf.concat([part, tf.zeros(shape, part.dtype)], axis=0), [None, *part.shape[1:]])


def _shape_elsewhere(part: tf.Tensor) -> tf.Tensor:
    """Return the shape of an example; a replica without examples may have to get it from the others."""
    shape = tf.cast(tf.shape(part)[1:], tf.int64)
    context = tf.distribute.get_replica_context()
    if part.shape[1:].is_fully_defined() or context.num_replicas_in_sync == 1:
        return shape
    return tf.reduce_max(context.all_gather(shape[tf.newaxis], axis=0), axis=0)


def batch_of_zeros(spec: Any) -> Any:
    """Return a batch of one example of zeros; None if a part is no plain tensor."""
    if not all(part is None or isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec)):
        return None

    def zeros(part: tf.TensorSpec | None) -> tf.Tensor | None:
        if part is None or not part.shape.rank:
            return None if part is None else tf.zeros(part.shape, part.dtype)
        return tf.zeros([1, *(size or _UNKNOWN_LENGTH for size in part.shape[1:])], part.dtype)

    return tf.nest.map_structure(zeros, spec)
