"""Let all workers leave a loop at the same step, when any of them wants to."""

import time
from typing import Any

import tensorflow as tf

__all__ = ["Agreement", "added_up", "wait_for_all"]

_SECONDS_APART = 1.0
_MOST_APART = 64  # executions: where they suddenly take longer, it must not be for ever


class Agreement:
    """Ask all workers, about once a second, whether one of them wants to leave.

    Workers in step that left alone would leave the others waiting in the next exchange. To ask costs an
    exchange of its own, so they do it when the chief, who measures, has said in the one before.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, is_chief: bool) -> None:
        self._is_shared = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._strategy, self._is_chief = strategy, is_chief
        self._executions, self._apart = 0, 1
        self._asked_at = time.monotonic()
        self._exchange = tf.function(self._summed, autograph=False)

    def after_execution(self, wants: bool) -> bool:
        """Say whether to leave; all workers have to call it after each execution."""
        if not self._is_shared:
            return wants
        self._executions += 1
        if self._executions < self._apart:
            return False
        now = time.monotonic()
        in_time = self._executions * _SECONDS_APART / max(now - self._asked_at, 1e-3)
        apart = max(1, min(int(in_time), 2 * self._apart, _MOST_APART)) if self._is_chief else 0
        count, self._apart = (int(each) for each in self._exchange(tf.constant([float(wants), float(apart)])))
        self._executions, self._asked_at = 0, now
        return count > 0

    def _summed(self, said: tf.Tensor) -> Any:
        return added_up(self._strategy, said)


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Return when all workers have come here: one that ends while others work is taken for lost."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        tf.function(lambda: added_up(strategy, tf.constant(1.0)), autograph=False)()


def added_up(strategy: tf.distribute.Strategy, said: tf.Tensor) -> Any:
    """Add up what each worker says, in floats, which every kind of device exchanges; all have to call it."""

    def speak(said: tf.Tensor) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(said))

    summed = strategy.experimental_local_results(strategy.run(speak, args=(said,)))[0]
    return summed / len(strategy.extended.worker_devices)  # each of a worker's replicas has spoken
