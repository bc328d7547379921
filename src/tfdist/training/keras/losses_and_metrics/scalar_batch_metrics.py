"""Count metrics that get one number, or one for each class, for a batch; each replica has its part's."""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist._utils.temporary_patches import methods_replaced
from tfdist.training.replicas.ops_across_examples import is_without_rows
from tfdist.training.replicas.split_into_terms import Term, of_whole, sum_in, terms_of

_INEXACT = (
    "metric %s: it gets one number for a batch, or for each class; several replicas each compute it on their"
    " part, and it is unknown how these make the number of the whole batch, so their mean is taken. To have"
    " it exact, return a number for each example, or write a keras.metrics.Metric that adds up counts"
)
_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Numbers:
    """The terms of what a batch adds to metrics that average, or add up, one number for each batch.

    Attributes:
        terms: The terms of each metric, by the id of its variable `total`.
        rows: The number of examples of a replica, None in a graph that does not fix it.
    """

    terms: Mapping[int, Sequence[Term]]
    rows: int | None

    @property
    def count(self) -> int:
        """Return how many values `sums` returns."""
        return sum(1 if term.divisor is None else 2 for term in self._terms())

    def sums(self, size: Any) -> list[tf.Tensor]:
        """Return the values of a replica to add up, of which `totals` makes those of the whole batch."""
        found = []
        for term in self._terms():
            value = tf.cast(term.tensor, tf.float64)
            found.append(value if term.kind == "sum" else value * tf.cast(size, tf.float64))
            if term.divisor is not None:
                found.append(tf.cast(sum_in(term.divisor, self.rows), tf.float64))
        return found

    def totals(self, sums: Sequence[tf.Tensor], size: tf.Tensor) -> dict[int, tf.Tensor]:
        """Return what the whole batch adds to each metric, by the id of its variable `total`."""
        left, found = iter(sums), {}
        for key, terms in self.terms.items():
            values = []
            for term in terms:
                value = next(left) * term.factor
                if term.divisor is not None:
                    total = next(left)
                    value = tf.math.divide_no_nan(value, self._whole(term.divisor, total))
                values.append(value if term.kind == "sum" else tf.math.divide_no_nan(value, size))
            found[key] = tf.add_n(values)
        return found

    def _terms(self) -> list[Term]:
        return [term for terms in self.terms.values() for term in terms]

    def _whole(self, divisor: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        return tf.cast(of_whole(divisor, self.rows, lambda _: total), tf.float64)


NO_NUMBERS = Numbers({}, None)


class BatchMeans:
    """The metrics of a model that average, or add up, one number for each batch, as a trace of it shows."""

    def __init__(self, keras: ModuleType, without: Collection[Any]) -> None:
        """Make it for a model's metrics without some, such as those of its losses."""
        self._keras = keras
        self._without = {id(metric) for metric in without}
        self._variables: set[int] = set()  # ids
        self._warned: set[str] = set()
        self._here = threading.local()  # a synchronized layer hands over to the thread of another replica
        self.begin(None)

    def begin(self, rows: int | None) -> None:
        """Forget what this thread has noted before; `rows` is the number of its examples, if fixed."""
        self._here.rows = rows
        self._here.terms = {}  # lists by the ids of `total`; None if one is unknown

    @property
    def numbers(self) -> Numbers:
        """Return the numbers since `begin` of which it is known how the parts make the whole."""
        terms = {key: terms for key, terms in self._here.terms.items() if terms is not None}
        return Numbers(terms, self._here.rows)

    def noted(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which metrics that get one number for a batch are noted."""
        kinds = (self._keras.metrics.Mean, self._keras.metrics.Sum)
        return methods_replaced([(kind, "update_state", self._count) for kind in kinds])

    def _count(
        self, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        if id(metric) in self._without or not hasattr(self._here, "terms"):  # no replica's thread
            return original(values, sample_weight=sample_weight)
        key, terms = id(metric.total), None
        number = None if sample_weight is not None else self._number(metric, values)
        if number is not None:
            self._variables |= {key} | ({id(metric.count)} if self._averages(metric) else set())
            terms = terms_of(number, self._here.rows, is_trained=False)
            if terms is None and metric.name not in self._warned:
                self._warned.add(metric.name)
                _log.warning(_INEXACT, metric.name)
        before = self._here.terms.get(key, [])
        self._here.terms[key] = None if before is None or terms is None else [*before, *terms]
        return original(values, sample_weight=sample_weight)

    def _number(self, metric: Any, values: Any) -> Any:
        """Return what values without examples add to a metric's total; None if they have examples."""
        if not self._keras.ops.ndim(values):
            return values
        if not isinstance(values, tf.Tensor) or not is_without_rows(values, self._here.rows):
            return None
        values = tf.cast(values, metric.dtype)
        return tf.reduce_mean(values) * values.shape[0] if self._averages(metric) else tf.reduce_sum(values)

    def _averages(self, metric: Any) -> bool:
        return isinstance(metric, self._keras.metrics.Mean)

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
