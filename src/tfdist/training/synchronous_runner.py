"""Run the steps of an epoch on replicas that work in step."""

from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from tfdist.training.multi_step import Totals
from tfdist.training.no_autotune import untuned_on_devices

__all__ = ["SynchronousRunner"]


class SynchronousRunner:
    """A runner of executions, of K steps, over a distributed data set.

    Attributes:
        waited: The seconds that this process's steps have waited for data.
    """

    def __init__(self, execution: Callable[..., Any], dataset: Any, *, eagerly: bool) -> None:
        self._execute = (
            execution if eagerly else tf.function(execution, autograph=False, reduce_retracing=True)
        )
        self._dataset = dataset
        self._iterator: Any = None
        self._is_winding_up = False
        self.waited = 0.0

    def rewind(self, dataset: Any = None) -> None:
        """Start the next epoch at the beginning of the data, or of other data distributed in the same way."""
        self._dataset = self._dataset if dataset is None else dataset
        self._iterator = None

    def epoch(
        self, steps: int | None, steps_per_execution: int, totals: Totals, *, repeats: bool = True
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far.

        With a number of steps, an epoch continues in the data where the last epoch ended. If the data end
        first, the epoch begins them again if `repeats`, and ends otherwise. Without a number of steps, an
        epoch is the data set.
        """
        if steps is None or self._iterator is None:
            self._begin_data()
        done, is_fresh, self._is_winding_up = 0, steps is None, False
        while not self._is_winding_up and (steps is None or done < steps):
            wanted = steps_per_execution if steps is None else min(steps_per_execution, steps - done)
            ran, totals, waited = self._execute(self._iterator, tf.constant(wanted), totals)
            ran, self.waited = int(ran), self.waited + float(waited)
            if ran:
                done += ran
                yield ran, totals
            if ran == wanted:
                is_fresh = False
                continue
            if steps is None or (is_fresh and not ran):  # the data have ended, or there are none
                return
            if done and not repeats:
                self._iterator = None
                return
            self._begin_data()
            is_fresh = True

    def wind_up(self) -> None:
        """End the running epoch here: an execution is over before the next one starts."""
        self._is_winding_up = True

    def _begin_data(self) -> None:
        with untuned_on_devices():
            self._iterator = iter(self._dataset)
