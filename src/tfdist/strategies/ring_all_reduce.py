"""Add gradients of mirrored workers up over a ring, instead of by TensorFlow's collectives.

A time limit ends TensorFlow's collectives that take too long.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.group_by_key import places_by_key
from tfdist._utils.tf_private import CollectiveAllReduce, abort_collectives, mirrored
from tfdist.transport.compression import Narrowing
from tfdist.transport.ring import Ring, Whole
from tfdist.transport.tensor_fusion import Fusion

__all__ = ["LimitedAllReduce", "RingAllReduce", "TimeLimit"]


class TimeLimit:
    """A time limit for TensorFlow's collectives: if one takes longer, all of them fail for good.

    TensorFlow's own option, `timeout_seconds`, ends the step while its calls are pending. A call that returns
    later can crash the process. This class ends the calls, and they end the step.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Start the time of an exchange."""
        self.end()  # one whose step failed has not ended it; a process has one exchange at a time
        self._timer = threading.Timer(self._seconds, self._end_collectives)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Stop the time."""
        if self._timer:
            self._timer.cancel()

    def _end_collectives(self) -> None:
        took = f"an exchange took longer than communication.timeout ({self._seconds:g} s)"
        abort_collectives(tf.errors.DEADLINE_EXCEEDED, took)


class LimitedAllReduce(CollectiveAllReduce):
    """TensorFlow's collectives, with a time limit if one is set."""

    def __init__(self, replaced: Any, limit: TimeLimit | None) -> None:
        """Replace TensorFlow's cross-device operations."""
        super().__init__(replaced)
        self._limit = limit

    def all_reduce(self, op: tf.distribute.ReduceOp, per_replica: Sequence[Any], options: Any) -> list[Any]:
        """Add values of the replicas up, or average them."""
        reduce = super().all_reduce
        return self._in_time(per_replica, lambda: reduce(op, per_replica, options))

    def all_gather(self, per_replica: Sequence[Any], axis: Any, options: Any) -> list[Any]:
        """Concatenate values of the replicas along an axis."""
        gather = super().all_gather
        return self._in_time(per_replica, lambda: gather(per_replica, axis, options))

    def _in_time(self, per_replica: Sequence[Any], exchange: Callable[[], list[Any]]) -> list[Any]:
        if self._limit is None:
            return exchange()
        # The time starts when all inputs are computed, and stops when all outputs have arrived.
        with tf.control_dependencies(_tensors(per_replica)):
            begun = _effect(self._limit.begin)
        with tf.control_dependencies(begun):
            results = exchange()
        with tf.control_dependencies(_tensors(results)):
            _effect(self._limit.end)
        return results


class RingAllReduce(LimitedAllReduce):
    """An all-reduce of dense tensors over a ring; TensorFlow reduces sparse ones."""

    def __init__(
        self, replaced: Any, ring: Ring, wire_type: str = "float32", limit: TimeLimit | None = None
    ) -> None:
        """Replace TensorFlow's cross-device operations; 32-bit gradients travel as `wire_type`."""
        super().__init__(replaced, limit)
        self._ring = ring
        self._fusion = functools.lru_cache(maxsize=64)(Fusion)
        self._wire_type = wire_type
        self._narrowing = functools.lru_cache(maxsize=64)(lambda fusion: Narrowing(wire_type))

    def scaled_sums(self, gradients: Sequence[Any], share: Any) -> list[Any]:
        """Return the sums of dense gradients, each replica's times its share, a float64 scalar."""
        parts = [_of_replicas(gradient) for gradient in gradients]
        shares = _of_replicas(share)
        if len(shares) > 1:
            parts = [_scaled(part, shares) for part in parts]
        one = tf.constant(1.0, tf.float64)
        return self._by_type(parts, one if len(shares) > 1 else shares[0])

    def all_reduce(self, op: tf.distribute.ReduceOp, per_replica: Sequence[Any], options: Any) -> list[Any]:
        """Add values up or average them: dense ones over the ring, sparse ones by TensorFlow."""
        is_sparse = [isinstance(value.values[0], tf.IndexedSlices) for value in per_replica]
        pairs = list(zip(per_replica, is_sparse, strict=True))
        sparse = [value for value, apart in pairs if apart]
        dense = self._by_type([value.values for value, apart in pairs if not apart])
        if op == tf.distribute.ReduceOp.MEAN:
            dense = [self._mean(total) for total in dense]
        dense_results = iter(dense)
        sparse_results = iter(super().all_reduce(op, sparse, options) if sparse else ())
        return [next(sparse_results if apart else dense_results) for apart in is_sparse]

    def _by_type(self, parts: Sequence[Sequence[tf.Tensor]], share: tf.Tensor | None = None) -> list[Any]:
        """Add tensors of one type up together, in program order, which is the same in all tasks."""
        totals: list[Any] = [None] * len(parts)
        for places in places_by_key(part[0].dtype for part in parts).values():
            sums = self._added_up([parts[place] for place in places], share)
            for place, total in zip(places, sums, strict=True):
                totals[place] = total
        return totals

    def _added_up(self, parts: Sequence[Sequence[tf.Tensor]], share: tf.Tensor | None) -> list[Any]:
        with tf.device(self.devices[0]):
            mine = [tf.add_n(part) for part in parts]
        exchange, scale = (self._exchange, ()) if share is None else (self._exchange_gradients, (share,))
        with tf.device("/device:CPU:0"):
            # TensorFlow keeps the order of stateful operations, so all tasks exchange in the same order.
            results = tf.numpy_function(exchange, [*scale, *mine], [tensor.dtype for tensor in mine])
        sums = tf.nest.flatten(results)  # eagerly, a single result is not in a list
        for tensor, total in zip(mine, sums, strict=True):
            total.set_shape(tensor.shape)
        return [self._mirrored(total) for total in sums]

    def _mirrored(self, total: tf.Tensor) -> Any:
        copies = []
        for device in self.devices:
            with tf.device(device):
                copies.append(tf.identity(total))
        return mirrored(copies)

    def _mean(self, total: Any) -> Any:
        means = [copy / tf.cast(self.group_size, copy.dtype) for copy in _of_replicas(total)]
        return mirrored(means)

    def _exchange(self, *arrays: Any) -> list[Any]:
        fusion = self._fused(arrays)
        whole = fusion.fused(arrays)
        with np.errstate(all="ignore"):  # the training itself checks for NaN and infinity
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
        return self._fusion(arrays[0].dtype, tuple(array.shape for array in arrays))


def _of_replicas(value: Any) -> tuple[tf.Tensor, ...]:
    return tuple(value.values) if isinstance(value, tf.distribute.DistributedValues) else (value,)


def _tensors(per_replica_values: Sequence[Any]) -> list[tf.Tensor]:
    of_replicas = [part for value in per_replica_values for part in _of_replicas(value)]
    return tf.nest.flatten(of_replicas, expand_composites=True)  # type: ignore[no-any-return]


def _effect(call: Callable[[], None]) -> list[tf.Operation]:
    """Call a Python function: now if eager, otherwise each time that the graph runs."""
    if tf.executing_eagerly():
        call()
        return []
    with tf.device("/device:CPU:0"):
        return [tf.numpy_function(call, [], [])]


def _scaled(parts: Sequence[tf.Tensor], shares: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    return tuple(part * tf.cast(share, part.dtype) for part, share in zip(parts, shares, strict=True))
