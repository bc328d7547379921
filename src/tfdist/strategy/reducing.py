"""Let TensorFlow's mirrored workers add up over a ring what they would add up by its own collectives.

And end those that take too long.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, distribute_utils, values
from tensorflow.python.eager import context

from tfdist.exchange import Fusion, Narrowing, Ring, Whole

__all__ = ["LimitedAllReduce", "RingAllReduce", "TimeLimit"]


class TimeLimit:
    """Ends TensorFlow's collectives for good when one takes longer than some seconds.

    What TensorFlow's own option for it (`timeout_seconds`) ends is the step, while calls of it are still on
    their way; one that comes back later can crash the process. This ends the calls, and they end the step.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Count from here on."""
        self.end()  # one whose step failed has no end of its own, and a process has one exchange at a time
        self._timer = threading.Timer(self._seconds, self._end_collectives)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Count no longer."""
        if self._timer:
            self._timer.cancel()

    def _end_collectives(self) -> None:
        took = f"one took longer than communication.timeout ({self._seconds:g} s)"
        context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, took)


class LimitedAllReduce(cross_device_ops.CollectiveAllReduce):  # type: ignore[misc]
    """TensorFlow's collectives, for which there may be a limit of time.

    MultiWorkerMirroredStrategy wants a CollectiveAllReduce, and hands it the values of all of this process's
    replicas at once.
    """

    def __init__(self, replaced: Any, limit: TimeLimit | None) -> None:
        """Take the place of TensorFlow's."""
        super().__init__(
            replaced._devices,
            replaced._group_size,
            replaced._options,
            replaced._collective_keys,
            replaced._canonicalize_devices,
        )
        self._limit = limit

    def _all_reduce_per_replica_values(
        self, reduce_op: tf.distribute.ReduceOp, per_replica_values: Sequence[Any], options: Any
    ) -> list[Any]:
        reduce = super()._all_reduce_per_replica_values
        return self._in_time(per_replica_values, lambda: reduce(reduce_op, per_replica_values, options))

    def _batch_all_gather(self, per_replica_values: Sequence[Any], axis: Any, options: Any) -> list[Any]:
        gather = super()._batch_all_gather
        return self._in_time(per_replica_values, lambda: gather(per_replica_values, axis, options))

    def _in_time(self, per_replica_values: Sequence[Any], exchange: Callable[[], list[Any]]) -> list[Any]:
        if self._limit is None:
            return exchange()
        # The time runs when all that goes out is computed, and while what comes in does not.
        with tf.control_dependencies(_tensors(per_replica_values)):
            begun = _effect(self._limit.begin)
        with tf.control_dependencies(begun):
            found = exchange()
        with tf.control_dependencies(_tensors(found)):
            _effect(self._limit.end)
        return found


class RingAllReduce(LimitedAllReduce):
    """Add dense tensors up over a ring, and leave sparse ones to TensorFlow."""

    def __init__(
        self, replaced: Any, ring: Ring, wire_type: str = "float32", limit: TimeLimit | None = None
    ) -> None:
        """Take the place of TensorFlow's; gradients of 32 bits travel as a type that may be narrower."""
        super().__init__(replaced, limit)
        self._ring = ring
        self._fusion = functools.lru_cache(maxsize=64)(Fusion)
        self._wire_type = wire_type
        self._narrowing = functools.lru_cache(maxsize=64)(lambda fusion: Narrowing(wire_type))

    def scaled_sums(self, gradients: Sequence[Any], share: Any) -> list[Any]:
        """Add dense gradients up, each replica's times its share, a scalar of float64."""
        parts = [_of_replicas(each) for each in gradients]
        shares = _of_replicas(share)
        if len(shares) > 1:
            parts = [_scaled(each, shares) for each in parts]
        one = tf.constant(1.0, tf.float64)
        return self._by_type(parts, one if len(shares) > 1 else shares[0])

    def _all_reduce_per_replica_values(
        self, reduce_op: tf.distribute.ReduceOp, per_replica_values: Sequence[Any], options: Any
    ) -> list[Any]:
        is_sparse = [isinstance(each.values[0], tf.IndexedSlices) for each in per_replica_values]
        pairs = list(zip(per_replica_values, is_sparse, strict=True))
        sparse = [each for each, apart in pairs if apart]
        dense = self._by_type([each.values for each, apart in pairs if not apart])
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            dense = [self._mean(each) for each in dense]
        found = iter(dense)
        found_sparse = iter(
            super()._all_reduce_per_replica_values(reduce_op, sparse, options) if sparse else ()
        )
        return [next(found_sparse if apart else found) for apart in is_sparse]

    def _by_type(self, parts: Sequence[Sequence[tf.Tensor]], share: tf.Tensor | None = None) -> list[Any]:
        """Add up what is of one type together, in the order of the program, which is that of all tasks."""
        found: list[Any] = [None] * len(parts)
        for dtype in dict.fromkeys(each[0].dtype for each in parts):
            places = [place for place, each in enumerate(parts) if each[0].dtype == dtype]
            sums = self._added_up([parts[place] for place in places], share)
            for place, each in zip(places, sums, strict=True):
                found[place] = each
        return found

    def _added_up(self, parts: Sequence[Sequence[tf.Tensor]], share: tf.Tensor | None) -> list[Any]:
        with tf.device(self._devices[0]):
            mine = [tf.add_n(each) for each in parts]
        exchange, scale = (self._exchange, ()) if share is None else (self._exchange_gradients, (share,))
        with tf.device("/device:CPU:0"):
            # An operation with effects keeps its place among the others, which so is the same in all tasks.
            found = tf.numpy_function(exchange, [*scale, *mine], [each.dtype for each in mine])
        sums = tf.nest.flatten(found)  # outside of graphs, one alone comes without its list
        for each, total in zip(mine, sums, strict=True):
            total.set_shape(each.shape)
        return [self._mirrored(total) for total in sums]

    def _mirrored(self, total: tf.Tensor) -> Any:
        copies = []
        for device in self._devices:
            with tf.device(device):
                copies.append(tf.identity(total))
        return distribute_utils.regroup(copies, wrap_class=values.Mirrored)

    def _mean(self, total: Any) -> Any:
        means = [each / tf.cast(self._group_size, each.dtype) for each in _of_replicas(total)]
        return distribute_utils.regroup(means, wrap_class=values.Mirrored)

    def _exchange(self, *arrays: Any) -> list[Any]:
        fusion = self._fused(arrays)
        whole = fusion.fused(arrays)
        with np.errstate(all="ignore"):  # what is not a number is for the training to see
            self._ring.add_up(Whole(whole))
        return fusion.parts(whole)

    def _exchange_gradients(self, scale: Any, *arrays: Any) -> list[Any]:
        fusion = self._fused(arrays)
        with np.errstate(all="ignore"):
            whole = fusion.fused(arrays, scale)
            is_narrowed = self._wire_type != "float32" and whole.dtype == np.float32
            self._ring.add_up(self._narrowing(fusion).loaded(whole) if is_narrowed else Whole(whole))
        return fusion.parts(whole)

    def _fused(self, arrays: Sequence[Any]) -> Fusion:
        return self._fusion(arrays[0].dtype, tuple(each.shape for each in arrays))


def _of_replicas(value: Any) -> tuple[tf.Tensor, ...]:
    return tuple(value.values) if isinstance(value, tf.distribute.DistributedValues) else (value,)


def _tensors(per_replica_values: Sequence[Any]) -> list[tf.Tensor]:
    of_replicas = [part for each in per_replica_values for part in _of_replicas(each)]
    return tf.nest.flatten(of_replicas, expand_composites=True)  # type: ignore[no-any-return]


def _effect(call: Callable[[], None]) -> list[tf.Operation]:
    """Call Python, now or whenever the graph comes by."""
    if tf.executing_eagerly():
        call()
        return []
    with tf.device("/device:CPU:0"):
        return [tf.numpy_function(call, [], [])]


def _scaled(parts: Sequence[tf.Tensor], shares: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    return tuple(each * tf.cast(share, each.dtype) for each, share in zip(parts, shares, strict=True))
