"""Measure each replica inside the graph: how long it computes before it waits, and its loss.

The measurements are in a table that adds up over steps. It has a row for each replica, with the columns
SECONDS, STEPS, the numbers of NaN and of infinite losses, and EXAMPLES.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import eager_context, must_be_deterministic, worker_count
from tfdist.strategies.gradient_arithmetic import tensors_of
from tfdist.training.parameter_servers.worker_index import worker_index

_COLUMNS = 5
SECONDS, STEPS, _NAN, _INFINITE, EXAMPLES = range(_COLUMNS)


class Failure(NamedTuple):
    """A NaN or infinite loss, and on which of how many replicas it occurred, if known."""

    kind: str
    replicas: tuple[int, ...] = ()
    of: int = 0


class ReplicaStats:
    """The measurements of each replica, or of each asynchronous worker."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._is_asynchronous = is_asynchronous(strategy)
        self._count = worker_count(strategy) if self._is_asynchronous else strategy.num_replicas_in_sync

    def zeros(self) -> tf.Tensor:
        """Return the table to start from."""
        return tf.zeros([self._count, _COLUMNS], tf.float64)

    @staticmethod
    def is_failing(table: Any) -> tf.Tensor:
        """Return, inside a graph, whether a loss was NaN or infinite."""
        return tf.reduce_any(table[:, _NAN:EXAMPLES] > 0)

    @staticmethod
    def failure(table: Any) -> Failure | None:
        """Return which replicas' losses were NaN or infinite, if any."""
        flags = np.asarray(table)[:, _NAN:EXAMPLES] > 0
        if not flags.any():
            return None
        kind = "NaN" if flags[:, 0].any() else "infinite"
        return Failure(kind, tuple(int(row) for row in np.flatnonzero(flags.any(axis=1))), len(flags))

    # -- in replica context --

    def begun(self, data: Any) -> tuple[tf.Tensor | None, Any]:
        """Return the time on this replica's machine when the data are there, and the data.

        The time is None where operations must be deterministic: TensorFlow then has no clock.

        The returned data are available only after the clock has been read. With few threads, TensorFlow would
        otherwise read it after some of the computation.
        """
        if must_be_deterministic():
            return None, data
        tensors = tensors_of(data)
        begun = now(tf.cast(tf.size(tensors[0]), tf.float64), after=tensors)
        return begun, only_after(begun, data)

    def ended(self, begun: tf.Tensor | None, results: Any, loss: tf.Tensor, size: Any) -> tf.Tensor:
        """Return a table with, in this replica's row, the seconds until the results, and the loss's state.

        If the start of the step is unknown, the seconds and steps are 0. `size` is the number of examples.
        """
        zero = tf.zeros([], tf.float64)
        seconds = zero if begun is None else now(begun, after=tensors_of(results)) - begun
        seen = [
            seconds,
            zero if begun is None else tf.ones_like(zero),
            tf.cast(tf.math.is_nan(loss), tf.float64),
            tf.cast(tf.math.is_inf(loss), tf.float64),
            tf.cast(size, tf.float64),
        ]
        if self._is_asynchronous:
            row = worker_index()
        else:
            row = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        mine = tf.one_hot(row, self._count, dtype=tf.float64)[:, None]
        return mine * tf.stack(seen)


def only_after(read: tf.Tensor, values: Any) -> Any:
    """Return the values, which are available only after the clock has been read."""
    with tf.control_dependencies([read]):
        return tf.nest.map_structure(
            lambda value: tf.identity(value) if tf.is_tensor(value) else value, values, expand_composites=True
        )


def now(number: tf.Tensor, *, after: list[tf.Tensor]) -> tf.Tensor:
    """Return the time when some tensors are computed; `number` distinguishes this call from others.

    It is always 0 where operations must be deterministic: TensorFlow then has no clock.
    """
    with tf.control_dependencies(after):
        number = tf.identity(number)
    if must_be_deterministic():
        return tf.zeros_like(number)
    if tf.executing_eagerly():
        return tf.timestamp()
    [read] = tf.raw_ops.PartitionedCall(args=[number], Tout=[tf.float64], f=_clock(eager_context()))
    return read


@functools.lru_cache(maxsize=1)
def _clock(_: Any) -> Any:
    """Return the function that reads the clock, for the context that knows all functions of this process.

    In a graph of several replicas, TensorFlow runs operations with side effects one after the other, and
    counts a clock among them. It would read the second replica's clock after the first replica has ended.
    Inside a function that is called as one without side effects, it reads the clock when the argument is
    there.
    """

    def read(number: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([number]):
            return tf.timestamp()

    return tf.function(read, autograph=False).get_concrete_function(tf.TensorSpec([], tf.float64))
