"""Measure, inside the graph, how long each replica computes in a step before it waits for the others."""

from typing import Any

import tensorflow as tf

from tfdist.loop.workers import worker_index

__all__ = ["Timing"]


class Timing:
    """Know the seconds and the steps of each replica, or of each worker that goes at its own pace.

    They can be known where a replica has a graph to itself. In a graph of several, TensorFlow runs operations
    that are not to be cached, such as reading a clock, one after the other.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._is_apart = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        self._count = strategy.extended._num_workers if self._is_apart else strategy.num_replicas_in_sync
        self.is_possible = self._is_apart or len(strategy.extended.worker_devices) == 1

    def nothing(self) -> tf.Tensor:
        """Give what the seconds and steps start from: a row for each replica or worker."""
        return tf.zeros([self._count, 2], tf.float64)

    # -- in replica context --

    def begun(self, data: Any) -> tf.Tensor | None:
        """Read the clock of this replica's machine when it has the data."""
        if not self.is_possible:
            return None
        with tf.control_dependencies(_tensors(data)):
            return tf.timestamp()

    def ended(self, begun: tf.Tensor | None, results: Any) -> tf.Tensor:
        """Give the seconds from then until the results are there, in this replica's row."""
        if begun is None:
            return self.nothing()
        with tf.control_dependencies(_tensors(results)):
            seconds = tf.timestamp() - begun
        if self._is_apart:
            row = worker_index()
        else:
            row = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        mine = tf.one_hot(row, self._count, dtype=tf.float64)[:, None]
        return mine * tf.stack([seconds, tf.ones_like(seconds)])


def _tensors(values: Any) -> list[tf.Tensor]:
    flat = tf.nest.flatten(values, expand_composites=True)
    return [each for each in flat if each is not None and tf.is_tensor(each)]
