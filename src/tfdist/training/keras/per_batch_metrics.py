"""Count one number of a batch once, though several replicas each compute it on their part of the batch."""

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.training.keras.replaced_methods import methods_replaced
from tfdist.training.sums_and_means_in_graph import reduction_of

_INEXACT = (
    "metric %s: its function returns one number for a batch; several replicas each compute it on their part,"
    " and the mean of these is the number of the whole batch only if the function is a mean over examples."
    " To have it exact, return a number for each example, or write a keras.metrics.Metric that adds up counts"
)
_log = logging.getLogger("tfdist")


class BatchMeans:
    """The metrics of a model that average one number for each batch, as a trace of its step shows.

    Attributes:
        rows: The number of examples of a replica, None in a graph that does not fix it.
    """

    rows: int | None = None

    def __init__(self, keras: ModuleType, without: Collection[Any]) -> None:
        """Make it for a model's metrics without some, such as those of its losses."""
        self._keras = keras
        self._without = {id(metric) for metric in without}
        self._variables: set[int] = set()  # ids
        self._warned: set[str] = set()

    def noted(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which metrics that get one number for a batch are noted."""
        return methods_replaced([(self._keras.metrics.Mean, "update_state", self._count)])

    def _count(
        self, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        if id(metric) not in self._without and sample_weight is None and not self._keras.ops.ndim(values):
            self._variables |= {id(metric.total), id(metric.count)}
            if reduction_of(values, self.rows) not in ("mean", "same") and metric.name not in self._warned:
                self._warned.add(metric.name)
                _log.warning(_INEXACT, metric.name)
        return original(values, sample_weight=sample_weight)

    def are_noted(self, variable: Any) -> bool:
        """Return whether a variable belongs to such a metric."""
        return id(variable) in self._variables

    def weighted(self, variables: Sequence[Any], counts: Sequence[tf.Tensor], size: Any) -> list[tf.Tensor]:
        """Return what a replica adds to each variable; to those of these metrics, for each example."""
        size = tf.cast(size, tf.float64)
        return [
            size * tf.cast(count, tf.float64) if id(variable) in self._variables else count
            for variable, count in zip(variables, counts, strict=True)
        ]

    def averaged(self, variables: Sequence[Any], sums: Sequence[tf.Tensor], size: Any) -> list[tf.Tensor]:
        """Return the sums over replicas, those of these metrics divided by the examples of the batch."""
        return [
            tf.math.divide_no_nan(total, size) if id(variable) in self._variables else total
            for variable, total in zip(variables, sums, strict=True)
        ]
