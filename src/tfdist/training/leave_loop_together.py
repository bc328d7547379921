"""Make all workers leave a loop at the same step, and take the same number of steps in a call until then."""

import time
from typing import Any

import tensorflow as tf

from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import EXCHANGE, doing
from tfdist.training.steps_per_call import StepsPerCall

__all__ = ["Agreement", "sum_over_workers", "wait_for_all"]

_SECONDS_APART = 1.0
_MOST_APART = 64  # executions; a bound, since executions may suddenly take longer


class Agreement:
    """A decision of all workers, about once a second, whether to leave a loop.

    A worker in step that leaves alone makes the others wait in the next exchange. Each decision costs an
    exchange of its own. The chief therefore measures the time, and each exchange also tells the workers after
    how many executions to make the next one, and how many steps an execution takes until then.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, *, is_chief: bool, steps_per_call: StepsPerCall | None = None
    ) -> None:
        self._is_shared = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._strategy, self._is_chief = strategy, is_chief
        self._calls = StepsPerCall(1) if steps_per_call is None else steps_per_call
        self._executions, self._apart = 0, 1
        self._asked_at = time.monotonic()
        self._exchange = tf.function(self._summed, autograph=False)

    def after_execution(self, wants: bool, steps: int = 0) -> bool:
        """Return whether to leave; all workers must call this method after each execution.

        Args:
            wants: Whether this worker wants to leave.
            steps: The steps of the execution; 0 if it is none of those whose steps are chosen.
        """
        if steps:
            self._calls.after_call(steps)
        if not self._is_shared:
            self._calls.number = self._calls.wanted
            return wants
        self._executions += 1
        if self._executions < self._apart:
            return False
        now = time.monotonic()
        in_time = self._executions * _SECONDS_APART / max(now - self._asked_at, 1e-3)
        in_time *= self._calls.number / self._calls.wanted
        apart = max(1, min(int(in_time), 2 * self._apart, _MOST_APART))
        of_chief = (apart, self._calls.wanted) if self._is_chief else (0, 0)
        with doing(EXCHANGE):
            count, self._apart, self._calls.number = (
                int(value) for value in self._exchange(tf.constant([wants, *of_chief], tf.float32))
            )
        self._executions, self._asked_at = 0, now
        return count > 0

    def _summed(self, values: tf.Tensor) -> Any:
        return sum_over_workers(self._strategy, values)


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Wait until all workers are here; a worker that ends while others work counts as lost."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        with doing(Activity("")):  # the chief may be writing large files
            tf.function(lambda: sum_over_workers(strategy, tf.constant(1.0)), autograph=False)()


def sum_over_workers(strategy: tf.distribute.Strategy, values: tf.Tensor) -> Any:
    """Return the sum of the workers' values; all workers must call this function.

    The values are floats, which devices of every kind can exchange.
    """

    def all_reduce(values: tf.Tensor) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

    summed = strategy.experimental_local_results(strategy.run(all_reduce, args=(values,)))[0]
    return summed / len(strategy.extended.worker_devices)  # each replica of a worker adds the worker's value
