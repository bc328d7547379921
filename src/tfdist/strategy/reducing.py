"""Let TensorFlow's mirrored workers add up over a ring what they would add up by its own collectives."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, distribute_utils, values

from tfdist.exchange import Fusion, Ring

__all__ = ["RingAllReduce"]


class RingAllReduce(cross_device_ops.CollectiveAllReduce):  # type: ignore[misc]
    """Add dense tensors up over a ring, and leave sparse ones to TensorFlow.

    MultiWorkerMirroredStrategy wants a CollectiveAllReduce, and hands it the values of all of this process's
    replicas at once.
    """

    def __init__(self, replaced: Any, ring: Ring) -> None:
        """Take the place of TensorFlow's."""
        super().__init__(
            replaced._devices,
            replaced._group_size,
            replaced._options,
            replaced._collective_keys,
            replaced._canonicalize_devices,
        )
        self._ring = ring
        self._fusion = functools.lru_cache(maxsize=64)(Fusion)

    def _all_reduce_per_replica_values(
        self, reduce_op: tf.distribute.ReduceOp, per_replica_values: Sequence[Any], options: Any
    ) -> list[Any]:
        found = list(per_replica_values)
        places: dict[Any, list[int]] = {}
        for place, each in enumerate(per_replica_values):
            first = each.values[0]
            places.setdefault(None if isinstance(first, tf.IndexedSlices) else first.dtype, []).append(place)
        for dtype, those in places.items():  # in the order of the program, which is that of all tasks
            some = [per_replica_values[place] for place in those]
            if dtype is None:
                reduced = super()._all_reduce_per_replica_values(reduce_op, some, options)
            else:
                reduced = self._added_up(reduce_op, some)
            for place, each in zip(those, reduced, strict=True):
                found[place] = each
        return found

    def _added_up(self, reduce_op: tf.distribute.ReduceOp, per_replica_values: Sequence[Any]) -> list[Any]:
        with tf.device(self._devices[0]):
            mine = [tf.add_n(each.values) for each in per_replica_values]
        with tf.device("/device:CPU:0"):
            # An operation with effects keeps its place among the others, which so is the same in all tasks.
            found = tf.numpy_function(self._exchange, mine, [each.dtype for each in mine])
        sums = tf.nest.flatten(found)  # outside of graphs, one alone comes without its list
        for each, total in zip(mine, sums, strict=True):
            total.set_shape(each.shape)
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            sums = [total / tf.cast(self._group_size, total.dtype) for total in sums]
        return [self._mirrored(total) for total in sums]

    def _mirrored(self, total: tf.Tensor) -> Any:
        copies = []
        for device in self._devices:
            with tf.device(device):
                copies.append(tf.identity(total))
        return distribute_utils.regroup(copies, wrap_class=values.Mirrored)

    def _exchange(self, *arrays: Any) -> list[Any]:
        fusion = self._fusion(arrays[0].dtype, tuple(each.shape for each in arrays))
        whole = fusion.fused(arrays)
        with np.errstate(all="ignore"):  # what is not a number is for the training to see
            self._ring.add_up(whole)
        return fusion.parts(whole)
