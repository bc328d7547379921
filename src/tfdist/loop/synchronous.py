"""Run the steps of an epoch on replicas that work in step."""

from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from tfdist.loop.beginnings import Beginnings
from tfdist.loop.executions import Totals

__all__ = ["SynchronousRunner"]


class SynchronousRunner:
    """Run an execution, of K steps, over a distributed data set.

    Attributes:
        waited: The seconds that this process's steps have waited for data.
    """

    def __init__(self, execution: Callable[..., Any], dataset: Any, *, eagerly: bool) -> None:
        self._execute = (
            execution if eagerly else tf.function(execution, autograph=False, reduce_retracing=True)
        )
        self._dataset, self._beginnings = dataset, Beginnings()
        self._iterator: Any = None
        self._is_winding_up = False
        self.waited = 0.0

    def rewind(self, dataset: Any = None) -> None:
        """Let the next epoch begin with the data's beginning, or with that of others, handed out alike."""
        self._dataset = self._dataset if dataset is None else dataset
        self._iterator = None

    def epoch(
        self, steps: int | None, steps_per_execution: int, totals: Totals
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far.

        With a number of steps, the data are gone on with where the last epoch left them, and begun anew as
        often as needed. Without, an epoch is the data set.
        """
        if steps is None or self._iterator is None:
            self._iterator = self._beginnings.begin(self._dataset)
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
            self._iterator, is_fresh = self._beginnings.begin(self._dataset), True

    def wind_up(self) -> None:
        """Let the epoch that is running end here: an execution is over before the next begins."""
        self._is_winding_up = True
