"""Send the numbers in the result of an execution as one tensor: each tensor costs chief and worker a call."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["PackedResults"]

_FIT_INTO_FLOAT64 = (tf.float64, tf.float32, tf.int32)
_MOST_NUMBERS = 1024  # in a tensor: in 64 bits a large one costs more than a call


class PackedResults:
    """The results of one graph, which TensorFlow may trace several times."""

    def __init__(self) -> None:
        # For each trace, its result with the spec of each tensor that is packed, and None for what is not.
        self._traces: list[Any] = []

    def packed(self, result: Any) -> tuple[tf.Tensor, list[Any]]:
        """Return, in the graph, a vector of all numbers in small tensors; and what else there is."""
        specs = tf.nest.map_structure(_spec_if_packed, result)
        numbers, others = [tf.constant([len(self._traces)], tf.float64)], []  # the number of the trace first
        for part, spec in zip(tf.nest.flatten(result), tf.nest.flatten(specs), strict=True):
            if spec is None:
                others.append(part)
            else:
                numbers.append(tf.reshape(tf.cast(part, tf.float64), [-1]))
        self._traces.append(specs)
        return tf.concat(numbers, 0), others

    def unpacked(self, fetched: tuple[Any, Sequence[Any]]) -> Any:
        """Return a result that was fetched, its numbers as arrays."""
        vector, others = np.asarray(fetched[0]), iter(fetched[1])
        specs = self._traces[int(vector[0])]
        values, start = [], 1
        for spec in tf.nest.flatten(specs):
            if spec is None:
                values.append(next(others))
                continue
            stop = start + spec.shape.num_elements()
            numbers = vector[start:stop].astype(spec.dtype.as_numpy_dtype)
            values.append(numbers.reshape(spec.shape.as_list()))
            start = stop
        return tf.nest.pack_sequence_as(specs, values)


def _spec_if_packed(part: Any) -> tf.TensorSpec | None:
    if not isinstance(part, tf.Tensor) or part.dtype not in _FIT_INTO_FLOAT64:
        return None
    size = part.shape.num_elements()
    return tf.TensorSpec(part.shape, part.dtype) if size is not None and size <= _MOST_NUMBERS else None
