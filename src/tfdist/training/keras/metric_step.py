"""Define the common part of the steps of Keras 3 models: they count in the state of the model's metrics."""

from typing import Any

import tensorflow as tf

from tfdist.training.keras.metrics import MetricState
from tfdist.training.keras.sharded_variables import read_by_rows
from tfdist.training.keras.step_base import KerasStep
from tfdist.training.multi_step import Totals

__all__ = ["MetricStep"]


class MetricStep(KerasStep):
    """A step whose totals are those of the metrics, followed by other values of the last batch, if any."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        super().__init__(model, strategy)
        self._metrics = MetricState(model, strategy)
        read_by_rows(model.variables)

    def begin(self) -> Totals:
        """Reset the metrics, and return the totals to start from."""
        return Totals((*self._metrics.reset(), *self._no_others()), self._step_stats.zeros())

    def empty_totals(self) -> Totals:
        """Return the totals of no examples."""
        return Totals((*self._metrics.zeros(), *self._no_others()), self._step_stats.zeros())

    def merged(self, totals: Totals, others: Totals) -> Totals:
        """Return totals merged with those of other steps, with the values of the later batch."""
        (counted, _), (others_counted, values) = self._split(totals), self._split(others)
        return Totals((*self._metrics.merged(counted, others_counted), *values), totals.stats + others.stats)

    def since(self, before: Totals, now: Totals) -> Totals:
        """Return what was counted from one point to another, and the values of the last batch."""
        (counted_before, _), (counted, values) = self._split(before), self._split(now)
        return Totals((*self._metrics.since(counted_before, counted), *values), now.stats - before.stats)

    def store(self, totals: Totals) -> None:
        """Write the totals to the metrics' own variables."""
        self._metrics.store(self._split(totals)[0])

    def _no_others(self) -> list[tf.Tensor]:
        """Return the other values in the totals of no batch."""
        return []

    def _split(self, totals: Totals) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        count = len(self._metrics.variables)
        return totals.metrics[:count], totals.metrics[count:]
