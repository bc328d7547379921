"""Exchange gradients in buckets while the backward pass still computes others.

The backward pass computes the gradients of the last layers first. One operation of the graph hands each
bucket to the thread that exchanges, as soon as the bucket's gradients are computed. Further operations wait
for the sums when all buckets are handed over, so no thread of TensorFlow waits while there is work.
"""

import functools
import itertools
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.profiler_span import AWAIT_SUMS, span
from tfdist.strategies.exchange_thread import ExchangeThread
from tfdist.strategies.plan_buckets import BucketBytes, plan_from_last
from tfdist.transport.compression import Narrowing
from tfdist.transport.ring import Ring, Whole
from tfdist.transport.tensor_fusion import Fusion

_NEW_STEP = -1
_MOST_STEPS = 16  # a step that failed leaves its sums behind


@dataclass
class _Step:
    """The exchange of the gradients of one step.

    Attributes:
        share: The factor of this task's gradients; None until the first bucket is exchanged.
        computed_at: When the last gradients were computed; None before.
        sums: The future sums of each bucket.
        returned: The buckets whose sums have been returned.
    """

    share: float | None = None
    computed_at: float | None = None
    sums: list[Future[list[Any]]] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)


class _Bucket:
    """The memory of one bucket of gradients, which is the same in each step.

    Attributes:
        fusion: Its layout.
        narrowing: What rounds it; None if it is sent as it is.
    """

    def __init__(self, fusion: Fusion, narrowing: Narrowing | None) -> None:
        self.fusion, self.narrowing = fusion, narrowing


class _ModelBuckets:
    """The buckets of the gradients of one model.

    Each has a layout of its own: int8 adds what it rounds away to the same gradients again.
    """

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, np.dtype[Any]], _Bucket] = {}
        self._restored: dict[str, Any] = {}

    @property
    def rounding_errors(self) -> dict[str, Any]:
        """Return what this task has rounded away and adds in the next step, by the name of the bucket."""
        narrowings = {name: bucket.narrowing for (name, _), bucket in self._buckets.items()}
        kept = {name: each.residual for name, each in narrowings.items() if each is not None}
        return self._restored | {name: error for name, error in kept.items() if error is not None}

    def restore(self, errors: Mapping[str, Any]) -> None:
        """Begin again with these rounding errors."""
        self._buckets.clear()
        self._restored = dict(errors)

    def bucket(
        self, place: tuple[int, int], dtype: np.dtype[Any], shapes: tuple[Any, ...], wire_type: str
    ) -> _Bucket:
        """Return the bucket at a place of the step, of gradients of these shapes."""
        name = f"{place} {shapes}"
        if (name, dtype) not in self._buckets:
            is_narrowed = wire_type != "float32" and dtype == np.float32
            narrowing = Narrowing(wire_type) if is_narrowed else None
            if narrowing is not None:
                narrowing.residual = self._restored.pop(name, None)
            self._buckets[name, dtype] = _Bucket(Fusion(dtype, shapes), narrowing)
        return self._buckets[name, dtype]


class GradientBuckets:
    """The exchange of gradients over a ring, bucket by bucket.

    A step belongs to the model of the last `begin_step`. What is kept from step to step goes with the model.

    Attributes:
        bucket_bytes: The bytes after which a bucket is full.
    """

    def __init__(self, ring: Ring, thread: ExchangeThread, wire_type: str) -> None:
        """Exchange 32-bit gradients as `wire_type`."""
        self._ring, self._thread, self._wire_type = ring, thread, wire_type
        self.bucket_bytes = BucketBytes()
        self._steps: dict[int, _Step] = {}
        self._numbers = itertools.count()
        self._of_models: weakref.WeakKeyDictionary[Any, _ModelBuckets] = weakref.WeakKeyDictionary()
        self._of_none = self._current = _ModelBuckets()
        self._exchanges = 0  # of an eager step so far

    def begin_step(self, model: Any) -> None:
        """Begin a step of a model: to trace it, or to run it eagerly."""
        self._current = self._of_models.setdefault(model, _ModelBuckets())
        self._exchanges = 0

    def place_in_eager_step(self) -> int:
        """Return the place of the next exchange among those of an eager step."""
        self._exchanges += 1
        return self._exchanges - 1

    @property
    def rounding_errors(self) -> dict[str, Any]:
        """Return what this task has rounded away and adds in the next step, by the name of the bucket."""
        return self._current.rounding_errors

    @rounding_errors.setter
    def rounding_errors(self, errors: Mapping[str, Any]) -> None:
        self._current.restore(errors)

    def sums(
        self, gradients: Sequence[tf.Tensor], weight: tf.Tensor | None, factor: tf.Tensor, place: int
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the sums of all tasks' gradients, and a tensor that is there when all have left.

        Args:
            gradients: This task's gradients, in the order in which the forward pass uses their variables.
            weight: The number whose sum over the tasks divides the sums; None for no division.
            factor: The number that multiplies this task's gradients.
            place: The place of this call among those of the graph.
        """
        divisor = tf.zeros([], tf.float64) if weight is None else weight
        sizes = [(gradient.dtype, _bytes(gradient)) for gradient in gradients]
        buckets, of_model = plan_from_last(sizes, self.bucket_bytes), weakref.ref(self._current)
        # TensorFlow computes an operation of constants only once; this is no constant for it.
        ticket = tf.compat.v1.placeholder_with_default(tf.constant(_NEW_STEP, tf.int64), [])
        for index, bucket in enumerate(buckets):
            mine = [gradients[number] for number in bucket]
            is_last = index == len(buckets) - 1
            # TensorFlow keeps this function for ever, so it refers to the buckets weakly.
            hand_over = functools.partial(
                self._hand_over, of_model, (place, index), is_last, weight is not None
            )
            # These operations are stateless for TensorFlow. It would run stateful ones in program order, all
            # of them after the whole backward pass. The ticket orders these.
            ticket = tf.numpy_function(hand_over, [ticket, factor, divisor, *mine], tf.int64, stateful=False)
            ticket.set_shape([])
        sums: list[Any] = [None] * len(gradients)
        for index, bucket in enumerate(buckets):
            dtypes = [gradients[number].dtype for number in bucket]
            wait = functools.partial(self._wait, index)
            totals = tf.numpy_function(wait, [ticket], dtypes, stateful=False)
            for number, total in zip(bucket, tf.nest.flatten(totals), strict=True):
                total.set_shape(gradients[number].shape)
                sums[number] = total
        return sums, ticket

    def _hand_over(
        self,
        of_model: weakref.ref[_ModelBuckets],
        place: tuple[int, int],
        is_last: bool,
        is_mean: bool,
        ticket: Any,
        factor: Any,
        divisor: Any,
        *gradients: Any,
    ) -> Any:
        if ticket == _NEW_STEP:
            ticket = next(self._numbers)
            self._steps[ticket] = _Step()
            while len(self._steps) > _MOST_STEPS:
                del self._steps[min(self._steps)]
        step = self._steps[int(ticket)]
        if is_last:
            step.computed_at = time.monotonic()
        weight = float(divisor) if is_mean else None
        buckets = of_model() or self._of_none
        exchange = functools.partial(self._exchange, step, buckets, place, float(factor), weight, gradients)
        step.sums.append(self._thread.submit(exchange))
        return np.int64(ticket)

    def _wait(self, index: int, ticket: Any) -> list[Any]:
        step = self._steps[int(ticket)]
        with span(AWAIT_SUMS, bucket=index):
            sums = step.sums[index].result()
        step.returned.append(index)
        if len(step.returned) == len(step.sums):
            self._steps.pop(int(ticket), None)
        return sums

    # -- in the thread that exchanges --

    def _exchange(
        self,
        step: _Step,
        buckets: _ModelBuckets,
        place: tuple[int, int],
        factor: float,
        weight: float | None,
        arrays: Sequence[Any],
    ) -> list[Any]:
        begun = time.monotonic()
        if step.share is None:
            step.share = factor if weight is None else self._divided_by_sum(factor, weight)
        shapes = tuple(array.shape for array in arrays)
        bucket = buckets.bucket(place, arrays[0].dtype, shapes, self._wire_type)
        with np.errstate(all="ignore"):  # the training itself checks for NaN and infinity
            whole = bucket.fusion.fused(arrays, step.share)
            payload = Whole(whole) if bucket.narrowing is None else bucket.narrowing.loaded(whole)
            self._ring.add_up(payload)
        ended, computed_at = time.monotonic(), step.computed_at
        self._ring.taken[payload.name].hidden += max(0.0, min(ended, computed_at or ended) - begun)
        return bucket.fusion.parts(whole)

    def _divided_by_sum(self, factor: float, weight: float) -> float:
        total = np.array([weight])
        self._ring.add_up(Whole(total))
        return factor / float(total[0]) if total[0] else 0.0  # as in Keras, a mean is zero if all is masked


def _bytes(gradient: tf.Tensor) -> int:
    return int(gradient.dtype.size * (gradient.shape.num_elements() or 0))
