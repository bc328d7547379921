"""Return a model's predictions from the replicas to the caller: dense, ragged and sparse tensors.

TensorFlow concatenates the replicas' predictions along the first axis, which it does not support for ragged
and sparse tensors.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class _Ragged(NamedTuple):
    """A ragged tensor as dense tensors."""

    values: Any
    lengths: tuple[Any, ...]  # of the rows, from the outermost dimension to the innermost


class _Sparse(NamedTuple):
    """A sparse tensor as a dense one."""

    dense: Any


def encoded(output: Any, size: tf.Tensor | None = None) -> Any:
    """Return an output as tensors that can be concatenated along the first axis.

    If there is a `size` and it is zero, the output is that of an example which stands for none.
    """
    if isinstance(output, tf.RaggedTensor):
        rows = _none_if_empty(output, size)
        return _Ragged(rows.flat_values, tuple(rows.nested_row_lengths()))
    if isinstance(output, tf.SparseTensor):
        return _Sparse(_none_if_empty(tf.sparse.to_dense(output), size))
    return _none_if_empty(tf.convert_to_tensor(output), size)


def _none_if_empty(output: Any, size: tf.Tensor | None) -> Any:
    if size is None:
        return output
    rows = output.nrows() if isinstance(output, tf.RaggedTensor) else tf.shape(output)[0]
    return output[: rows * tf.cast(size > 0, rows.dtype)]


def decoded(outputs: Any) -> Any:
    """Return outputs as arrays, or as ragged and sparse tensors."""
    if isinstance(outputs, _Ragged):
        return tf.RaggedTensor.from_nested_row_lengths(outputs.values, outputs.lengths)
    if isinstance(outputs, _Sparse):
        return tf.sparse.from_dense(outputs.dense)
    if isinstance(outputs, dict):
        return type(outputs)({name: decoded(value) for name, value in outputs.items()})
    if isinstance(outputs, (list, tuple)):
        values = [decoded(value) for value in outputs]
        return type(outputs)(*values) if hasattr(outputs, "_fields") else type(outputs)(values)
    return np.asarray(outputs)


def joined(batches: Sequence[Any], order: np.ndarray | None = None) -> Any:
    """Return the outputs of all batches in one structure, in the given order."""
    return tf.nest.map_structure(lambda *values: _joined(values, order), *batches)


def _joined(values: Sequence[Any], order: np.ndarray | None) -> Any:
    if isinstance(values[0], tf.SparseTensor):
        dense = tf.concat([tf.sparse.to_dense(value) for value in values], axis=0)
        return tf.sparse.from_dense(dense if order is None else tf.gather(dense, order))
    shapes = [value.shape[1:] for value in values]
    if isinstance(values[0], np.ndarray):
        if all(shape == shapes[0] for shape in shapes):
            joined = np.concatenate(values) if values[0].ndim else np.stack(values)
            return joined if order is None else joined[order]
        values = [tf.RaggedTensor.from_tensor(value, ragged_rank=_ragged_rank(shapes)) for value in values]
    joined = tf.concat(values, axis=0)
    return joined if order is None else tf.gather(joined, order)


def _ragged_rank(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the last axis in which the shapes of batches differ."""
    return max(place for place, sizes in enumerate(zip(*shapes, strict=True), 1) if len(set(sizes)) > 1)
