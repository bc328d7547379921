"""Measure, inside the graph, how long each replica computes in a step before it waits for the others."""

import functools
from typing import Any

import tensorflow as tf

from tfdist.loop.workers import worker_index

__all__ = ["Timing"]


class Timing:
    """Know the seconds and the steps of each replica, or of each worker that goes at its own pace."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._is_apart = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        self._count = strategy.extended._num_workers if self._is_apart else strategy.num_replicas_in_sync

    def nothing(self) -> tf.Tensor:
        """Give what the seconds and steps start from: a row for each replica or worker."""
        return tf.zeros([self._count, 2], tf.float64)

    # -- in replica context --

    def begun(self, data: Any) -> tf.Tensor:
        """Read the clock of this replica's machine when it has the data."""
        tensors = _tensors(data)
        return _now(tf.cast(tf.size(tensors[0]), tf.float64), after=tensors)

    def ended(self, begun: tf.Tensor, results: Any) -> tf.Tensor:
        """Give the seconds from then until the results are there, in this replica's row."""
        seconds = _now(begun, after=_tensors(results)) - begun
        if self._is_apart:
            row = worker_index()
        else:
            row = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        mine = tf.one_hot(row, self._count, dtype=tf.float64)[:, None]
        return mine * tf.stack([seconds, tf.ones_like(seconds)])


def _now(number: tf.Tensor, *, after: list[tf.Tensor]) -> tf.Tensor:
    """Read the clock when some tensors are there; the number tells this place in the graph from others."""
    with tf.control_dependencies(after):
        number = tf.identity(number)
    if tf.executing_eagerly():
        return tf.timestamp()
    [now] = tf.raw_ops.PartitionedCall(args=[number], Tout=[tf.float64], f=_clock())
    return now


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

    return tf.function(read).get_concrete_function(tf.TensorSpec([], tf.float64))


def _tensors(values: Any) -> list[tf.Tensor]:
    flat = tf.nest.flatten(values, expand_composites=True)
    return [each for each in flat if each is not None and tf.is_tensor(each)]
