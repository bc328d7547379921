"""Gauge each replica inside the graph: how long it computes before it waits, and what its loss is.

What is seen is in a table that adds up over steps: a row for each replica, with the columns SECONDS, STEPS,
and how many of its losses were NaN, and infinite.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.loop.workers import worker_index

__all__ = ["SECONDS", "STEPS", "Failure", "Gauge", "now", "only_after"]

SECONDS, STEPS, _NAN, _INFINITE = range(4)


class Failure(NamedTuple):
    """Say what a loss became that is no number, and on which of how many replicas, where that is known."""

    kind: str
    replicas: tuple[int, ...] = ()
    of: int = 0


class Gauge:
    """Gauge each replica, or each worker that goes at its own pace."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._is_apart = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        self._count = strategy.extended._num_workers if self._is_apart else strategy.num_replicas_in_sync

    def nothing(self) -> tf.Tensor:
        """Give the table to start from."""
        return tf.zeros([self._count, 4], tf.float64)

    @staticmethod
    def is_failing(table: Any) -> tf.Tensor:
        """Say, inside a graph, whether a loss was no number."""
        return tf.reduce_any(table[:, _NAN:] > 0)

    @staticmethod
    def failure(table: Any) -> Failure | None:
        """Say which replicas' losses were no numbers, if any."""
        found = np.asarray(table)[:, _NAN:] > 0
        if not found.any():
            return None
        kind = "NaN" if found[:, 0].any() else "infinite"
        return Failure(kind, tuple(int(row) for row in np.flatnonzero(found.any(axis=1))), len(found))

    # -- in replica context --

    def begun(self, data: Any) -> tuple[tf.Tensor, Any]:
        """Read the clock of this replica's machine when it has the data; give these on only then.

        Where TensorFlow has few threads, it would else read the clock when it has computed something already.
        """
        tensors = _tensors(data)
        begun = now(tf.cast(tf.size(tensors[0]), tf.float64), after=tensors)
        return begun, only_after(begun, data)

    def ended(self, begun: tf.Tensor | None, results: Any, loss: tf.Tensor) -> tf.Tensor:
        """Give, in this replica's row, the seconds until the results are there, and what the loss is.

        Where it is not known when the step began, the seconds and steps stay 0.
        """
        zero = tf.zeros([], tf.float64)
        seconds = zero if begun is None else now(begun, after=_tensors(results)) - begun
        seen = [
            seconds,
            zero if begun is None else tf.ones_like(zero),
            tf.cast(tf.math.is_nan(loss), tf.float64),
            tf.cast(tf.math.is_inf(loss), tf.float64),
        ]
        if self._is_apart:
            row = worker_index()
        else:
            row = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        mine = tf.one_hot(row, self._count, dtype=tf.float64)[:, None]
        return mine * tf.stack(seen)


def only_after(read: tf.Tensor, values: Any) -> Any:
    """Give values on when the clock has been read."""
    with tf.control_dependencies([read]):
        return tf.nest.map_structure(
            lambda each: tf.identity(each) if tf.is_tensor(each) else each, values, expand_composites=True
        )


def now(number: tf.Tensor, *, after: list[tf.Tensor]) -> tf.Tensor:
    """Read the clock when some tensors are there; the number tells this place in the graph from others."""
    with tf.control_dependencies(after):
        number = tf.identity(number)
    if tf.executing_eagerly():
        return tf.timestamp()
    [read] = tf.raw_ops.PartitionedCall(args=[number], Tout=[tf.float64], f=_clock())
    return read


@functools.cache
def _clock() -> Any:
    """Make the function that reads the clock.

    In a graph of several replicas TensorFlow runs operations that have effects, and it counts reading a clock
    among these, one after the other: the second replica's would be read when the first has ended. Within
    a function that is called as one without effects, it is read when the argument is there.
    """

    def read(number: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([number]):
            return tf.timestamp()

    return tf.function(read, autograph=False).get_concrete_function(tf.TensorSpec([], tf.float64))


def _tensors(values: Any) -> list[tf.Tensor]:
    flat = tf.nest.flatten(values, expand_composites=True)
    return [each for each in flat if each is not None and tf.is_tensor(each)]
