"""Add gradients of mirrored workers up over a ring, instead of by TensorFlow's collectives.

A time limit ends TensorFlow's collectives that take too long.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.indices_by_key import indices_by_key
from tfdist._utils.tf_private import (
    CollectiveAllReduce,
    abort_collectives,
    mirrored,
    per_replica,
)
from tfdist.strategies.bitcast_for_collectives import from_collective_type, to_collective_type
from tfdist.strategies.exchange_thread import ExchangeThread
from tfdist.strategies.gradient_arithmetic import divided, tensors_of
from tfdist.strategies.gradient_buckets import GradientBuckets
from tfdist.strategies.order_of_exchanges import count_exchanges, exchanges_before, note_exchange
from tfdist.transport.ring import Ring, Whole
from tfdist.transport.tensor_fusion import Fusion


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
        super().__init__(replaced)
        self._limit = limit

    def all_reduce(self, op: tf.distribute.ReduceOp, per_replica: Sequence[Any], options: Any) -> list[Any]:
        """Add values of the replicas up, or average them."""
        reduce = super().all_reduce
        return self._in_time(per_replica, lambda: reduce(op, per_replica, options))

    def all_gather(self, values: Sequence[Any], axis: Any, options: Any) -> list[Any]:
        """Concatenate values of the replicas along an axis; their types may be more than TensorFlow takes."""
        gather = super().all_gather
        types = [_of_replicas(value)[0].dtype for value in values]
        sent = [per_replica(_converted(value, to_collective_type)) for value in values]
        gathered = self._in_time(sent, lambda: gather(sent, axis, options))
        return [
            mirrored(_converted(whole, functools.partial(from_collective_type, dtype=dtype)))
            for whole, dtype in zip(gathered, types, strict=True)
        ]

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
    """An all-reduce over a ring, of tensors and of rows of them.

    Attributes:
        ring: The ring.
        buckets: The exchange of gradients, which knows what it has rounded away.
        keeps_rounding_errors: Whether a step adds what the step before has rounded away.
    """

    def __init__(self, replaced: Any, ring: Ring, wire_type: str, limit: TimeLimit | None) -> None:
        """Replace TensorFlow's cross-device operations; 32-bit gradients travel as `wire_type`."""
        super().__init__(replaced, limit)
        self.ring, self._thread = ring, ExchangeThread()
        self.keeps_rounding_errors = wire_type == "int8"
        self._fusion = functools.lru_cache(maxsize=64)(Fusion)
        self.buckets = GradientBuckets(ring, self._thread, wire_type)

    def gathered(self, data: bytes) -> list[bytes]:
        """Return the bytes of all tasks, by rank; all tasks call this between two steps."""
        arrays = self._thread.run(lambda: self.ring.gather(np.frombuffer(data, np.uint8)))
        return [array.tobytes() for array in arrays]

    def weighted_sums(self, gradients: Sequence[Any], weight: Any, *, is_mean: bool) -> list[Any]:
        """Return the sums of dense gradients, each replica's times its weight, a float64 scalar.

        If `is_mean`, the sums are divided by the sum of all weights.
        """
        parts, weights = [_of_replicas(gradient) for gradient in gradients], _of_replicas(weight)
        factor = weights[0]
        if len(weights) > 1:
            parts, factor = [_scaled(part, weights) for part in parts], tf.constant(1.0, tf.float64)
        with tf.device(self.devices[0]):
            mine = [tf.add_n(part) for part in parts]
        with tf.device("/device:CPU:0"):
            divisor = tf.add_n(weights) if is_mean else None
            sums = self._exchanged_in_buckets(mine, divisor, factor)
        return [self._mirrored(total) for total in sums]

    def _exchanged_in_buckets(
        self, gradients: Sequence[tf.Tensor], divisor: tf.Tensor | None, factor: tf.Tensor
    ) -> list[tf.Tensor]:
        with tf.control_dependencies(exchanges_before()):
            factor = tf.identity(factor)  # which all buckets need
        place = self.buckets.place_in_eager_step() if tf.executing_eagerly() else count_exchanges()
        sums, have_left = self.buckets.sums(gradients, divisor, factor, place)
        note_exchange(have_left)
        return sums

    def all_reduce(self, op: tf.distribute.ReduceOp, per_replica: Sequence[Any], options: Any) -> list[Any]:
        """Add values up or average them over the ring."""
        del options
        is_sparse = [isinstance(value.values[0], tf.IndexedSlices) for value in per_replica]
        pairs = list(zip(per_replica, is_sparse, strict=True))
        dense = iter(self._by_type([value.values for value, apart in pairs if not apart]))
        totals = [self._gathered(value.values) if apart else next(dense) for value, apart in pairs]
        return [self._mean(total) for total in totals] if op == tf.distribute.ReduceOp.MEAN else totals

    def _by_type(self, parts: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
        """Add tensors of one type up together, in program order, which is the same in all tasks."""
        totals: list[Any] = [None] * len(parts)
        for places in indices_by_key(part[0].dtype for part in parts).values():
            sums = self._added_up([parts[place] for place in places])
            for place, total in zip(places, sums, strict=True):
                totals[place] = total
        return totals

    def _added_up(self, parts: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
        with tf.device(self.devices[0]):
            mine = [tf.add_n(part) for part in parts]
        with tf.device("/device:CPU:0"), tf.control_dependencies(exchanges_before()):
            results = tf.numpy_function(self._exchange, mine, [tensor.dtype for tensor in mine])
        sums = tf.nest.flatten(results)  # eagerly, a single result is not in a list
        note_exchange(sums[0])
        for tensor, total in zip(mine, sums, strict=True):
            total.set_shape(tensor.shape)
        return [self._mirrored(total) for total in sums]

    def _gathered(self, parts: Sequence[tf.IndexedSlices]) -> Any:
        """Return the rows of all replicas of all tasks, in the order of the replicas."""
        first = parts[0]
        with tf.device(self.devices[0]):
            values = tf.concat([part.values for part in parts], axis=0)
            indices = tf.cast(tf.concat([part.indices for part in parts], axis=0), tf.int64)
        with tf.device("/device:CPU:0"), tf.control_dependencies(exchanges_before()):
            exchanged = tf.numpy_function(self._exchange_rows, [values, indices], [values.dtype, tf.int64])
        note_exchange(exchanged[0])
        for tensor, given in zip(exchanged, (values, indices), strict=True):
            tensor.set_shape([None, *given.shape[1:]])
        rows = tf.IndexedSlices(exchanged[0], tf.cast(exchanged[1], first.indices.dtype), first.dense_shape)
        return self._mirrored(rows)

    def _mirrored(self, total: Any) -> Any:
        copies = []
        for device in self.devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, total, expand_composites=True))
        return mirrored(copies)

    def _mean(self, total: Any) -> Any:
        return mirrored([divided(copy, self.group_size) for copy in _of_replicas(total)])

    def _exchange(self, *arrays: Any) -> list[Any]:
        return self._thread.run(lambda: self._sums(arrays))

    def _sums(self, arrays: Sequence[Any]) -> list[Any]:
        fusion = self._fusion(arrays[0].dtype, tuple(array.shape for array in arrays))
        whole = fusion.fused(arrays)
        with np.errstate(all="ignore"):  # the training itself checks for NaN and infinity
            self.ring.add_up(Whole(whole))
        return fusion.parts(whole)

    def _exchange_rows(self, values: Any, indices: Any) -> list[Any]:
        return self._thread.run(lambda: self._all_rows(values, indices))

    def _all_rows(self, values: Any, indices: Any) -> list[Any]:
        shape = values.shape[1:]
        row_bytes = int(np.prod(shape)) * values.itemsize
        arrays = self.ring.gather(np.concatenate([_as_bytes(values), _as_bytes(indices)]))
        counts = [len(array) // (row_bytes + indices.itemsize) for array in arrays]
        parts = [np.split(array, [count * row_bytes]) for array, count in zip(arrays, counts, strict=True)]
        all_values, all_indices = (np.concatenate(kind) for kind in zip(*parts, strict=True))
        return [all_values.view(values.dtype).reshape(-1, *shape), all_indices.view(indices.dtype)]


def _of_replicas(value: Any) -> tuple[tf.Tensor, ...]:
    return tuple(value.values) if isinstance(value, tf.distribute.DistributedValues) else (value,)


def _converted(value: Any, convert: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    copies = []
    for copy in _of_replicas(value):
        with tf.device(copy.device):
            copies.append(convert(copy))
    return copies


def _as_bytes(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _tensors(per_replica_values: Sequence[Any]) -> list[tf.Tensor]:
    return tensors_of([_of_replicas(value) for value in per_replica_values])


def _effect(call: Callable[[], None]) -> list[tf.Operation]:
    """Call a Python function: now if eager, otherwise each time that the graph runs."""
    if tf.executing_eagerly():
        call()
        return []
    with tf.device("/device:CPU:0"):
        return [tf.numpy_function(call, [], [])]


def _scaled(parts: Sequence[tf.Tensor], shares: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    return tuple(part * tf.cast(share, part.dtype) for part, share in zip(parts, shares, strict=True))
