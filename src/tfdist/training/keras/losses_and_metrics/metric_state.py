"""Keep the state of a Keras 3 model's metrics over steps, replicas and workers.

Most metrics are sums: `update_state` only adds to their variables. Each replica starts a batch from zero, and
the counts of all replicas are added up. The state of any other metric (a maximum, a last value) is kept for
each replica, passed on from step to step, and merged when results are read.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import is_of_keras, loss_trackers, metrics_within, variables_of_metric
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.errors import ConfigError
from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.training.keras.losses_and_metrics.metrics_of_callbacks import (
    is_combined_when_read,
    is_read_in_this_process,
)
from tfdist.training.parameter_servers.await_server_writes import write_to_servers
from tfdist.training.replicas.empty_replicas import or_zero
from tfdist.training.replicas.reduction import shared_mean
from tfdist.training.replicas.states_only_added_to import adds_one, only_added_to

_SUM, _MERGE, _MEAN, _FIRST = "sum", "merge", "mean", "only_first_replica"
_COUNTS_BATCHES = (
    "metric %s: adds 1 to its variable %s for a batch, and each of %d replicas counts its part as one; the"
    " result is that of one process only if parts are alike. To have it exact, count examples"
)
_log = logging.getLogger("tfdist")


class _Owned(NamedTuple):
    """A variable and the metrics that it belongs to, the outermost first.

    Attributes:
        is_kerass: Whether Keras made the metrics and nothing but Keras calls them.
    """

    variable: Any
    owners: tuple[Any, ...]
    is_kerass: bool


class MetricState:
    """The metric variables of a model, and the rules by which their values are merged.

    The totals are one tensor for each variable: for a sum, the sum as float64; for other state, a table with
    a row for each replica.

    Attributes:
        variables: The variables of all metrics, each once, in the order of `model.metrics_variables`.
        needs_check: Whether the model has metrics that are not Keras's own, whose state may not be sums.
    """

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        self._model, self._strategy = model, strategy
        self._owned = list(_owned(model))
        self.variables = [owned.variable for owned in self._owned]
        self.needs_check = not all(owned.is_kerass for owned in self._owned)
        self._rules = [_SUM] * len(self._owned)
        self._warned: set[str] = set()
        self._replicas = strategy.num_replicas_in_sync
        self._is_asynchronous = is_asynchronous(strategy)
        self._start: list[Any] = [np.zeros(variable.shape, variable.dtype) for variable in self.variables]

    @property
    def metrics(self) -> list[Any]:
        """Return all metrics that have variables, and those that these belong to."""
        owners = [owner for owned in self._owned for owner in owned.owners]
        return list({id(owner): owner for owner in owners}.values())

    def check(self, are_sums: Sequence[bool]) -> bool:
        """Choose how to merge each variable, and return whether this differs from before.

        `are_sums` tells which variables a metric only adds to, and does not read for others.

        Raises:
            ConfigError: Several replicas cannot merge the state of a metric.
        """
        before = self._rules
        self._rules = [
            _SUM if is_sum or owned.is_kerass else self._rule(owned)
            for owned, is_sum in zip(self._owned, are_sums, strict=True)
        ]
        return self._rules != before

    def warn_of_batches(
        self,
        scope: Any,
        before: Sequence[tuple[Any, tf.Tensor]],
        is_weighed: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Log a warning, in the graph of a batch, of each metric that counts a batch on each replica.

        `is_weighed` tells of which variables a replica's share of the batch weighs what is counted.
        """
        for owned, (variable, old) in zip(self._owned, before, strict=True):
            name = owned.owners[0].name
            is_known = owned.is_kerass or is_weighed(variable) or self._replicas == 1 or name in self._warned
            if not is_known and adds_one(scope.get_current_value(variable), old):
                self._warned.add(name)
                _log.warning(_COUNTS_BATCHES, name, variable.name, self._replicas)

    def _rule(self, owned: _Owned) -> str:
        if self._replicas == 1 and not self._is_asynchronous:
            return _FIRST
        if any(hasattr(owner, "merge_state") for owner in owned.owners):
            return _MERGE
        aggregation = getattr(owned.variable, "aggregation", None)
        if aggregation in (_MEAN, _FIRST) and not self._is_asynchronous:
            return str(aggregation)
        name = owned.variable.name
        problem = (
            f"does more than add to its variable {name}, or reads it to count: replicas cannot merge that"
        )
        remedy = "Define merge_state(self, metrics) on the metric, or train on one_device"
        raise ConfigError(f"metric {owned.owners[0].name}", problem, remedy=remedy)

    # -- of an epoch --

    def reset(self) -> tuple[tf.Tensor, ...]:
        """Reset the metrics, and return the totals to start from."""
        self._model.reset_metrics()
        if self.needs_check:
            # Reset again in a stateless scope, for the exact values. If a variable is read as a sum over
            # replicas, TensorFlow divides an assigned value among them, and rounds integers.
            with keras_of(self._model).StatelessScope() as scope:
                self._model.reset_metrics()
            values = [scope.get_current_value(variable) for variable in self.variables]
            with self._strategy.scope():
                self._start = [
                    np.asarray(tf.convert_to_tensor(variable.value if value is None else value))
                    for variable, value in zip(self.variables, values, strict=True)
                ]
        return tuple(
            tf.constant(value, tf.float64) if rule == _SUM else self._table(value)
            for value, rule in zip(self._start, self._rules, strict=True)
        )

    def zeros(self) -> tuple[tf.Tensor, ...]:
        """Return the totals of no examples, to which a worker adds before totals are merged."""
        return tuple(
            tf.zeros(value.shape, tf.float64) if rule == _SUM else self._table(value)
            for value, rule in zip(self._start, self._rules, strict=True)
        )

    def merged(self, totals: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        """Return totals merged with those of other examples, which were counted from `zeros`."""
        sums = [
            total + other if rule == _SUM else total
            for total, other, rule in zip(totals, others, self._rules, strict=True)
        ]
        if _MERGE in self._rules:
            rows = [
                self._merged_row(self._row(sums, row), [self._row(others, row)])
                for row in range(self._replicas)
            ]
            for place, rule in enumerate(self._rules):
                if rule == _MERGE:
                    sums[place] = np.stack([np.asarray(row[place]) for row in rows])
        return tuple(sums)

    def since(self, before: Sequence[Any], now: Sequence[Any]) -> tuple[Any, ...]:
        """Return what was counted from one point to another; for state other than sums, the state now."""
        return tuple(
            new - old if rule == _SUM else new
            for old, new, rule in zip(before, now, self._rules, strict=True)
        )

    def values(self, totals: Sequence[Any]) -> list[tuple[Any, tf.Tensor]]:
        """Return each variable with its value over all replicas."""
        values = self._row(totals, 0)
        if _MERGE in self._rules and self._replicas > 1:
            values = self._merged_row(values, [self._row(totals, row) for row in range(1, self._replicas)])
        for place, (total, rule) in enumerate(zip(totals, self._rules, strict=True)):
            if rule == _MEAN:
                values[place] = tf.reduce_mean(tf.cast(total, tf.float64), axis=0)
        return [
            (variable, tf.cast(value, variable.dtype))
            for variable, value in zip(self.variables, values, strict=True)
        ]

    def store(self, totals: Sequence[Any]) -> None:
        """Assign the values to the variables, so that `metric.result()` returns what the logs have."""
        write_to_servers(self._strategy, lambda: self._assign(totals))

    def _assign(self, totals: Sequence[Any]) -> None:
        is_chief = is_chief_of(self._strategy)
        for variable, value in self.values(totals):
            copies = self._strategy.experimental_local_results(variable.value)
            is_read_from_all = len(copies) > 1 or is_combined_when_read(variable.value)
            is_summed = is_read_from_all and getattr(variable, "aggregation", "sum") == "sum"
            for index, copy in enumerate(copies):
                has_value = is_chief or is_read_in_this_process(variable.value)
                is_read = not is_summed or (index == 0 and has_value)
                copy.assign(value if is_read else tf.zeros_like(value))

    def _table(self, value: Any) -> tf.Tensor:
        return tf.constant(np.stack([value] * self._replicas))

    def _row(self, totals: Sequence[Any], row: int) -> list[Any]:
        return [
            total if rule == _SUM else total[row] for total, rule in zip(totals, self._rules, strict=True)
        ]

    def _merged_row(self, values: Sequence[Any], others: Sequence[Sequence[Any]]) -> list[Any]:
        """Return a replica's state after each `merge_state` was called with the states of the others."""
        state, *states = (
            [
                (variable, tf.cast(value, variable.dtype))
                for variable, value in zip(self.variables, row, strict=True)
            ]
            for row in (values, *others)
        )
        merging = {
            id(owner): owner
            for owned, rule in zip(self._owned, self._rules, strict=True)
            if rule == _MERGE
            for owner in [next(metric for metric in owned.owners if hasattr(metric, "merge_state"))]
        }
        with keras_of(self._model).StatelessScope(state) as scope:
            for owner in merging.values():
                owner.merge_state(
                    [_Peer(owner, {id(variable): value for variable, value in pairs}) for pairs in states]
                )
        return [
            tf.convert_to_tensor(scope.get_current_value(variable)) if rule == _MERGE else value
            for (variable, _), value, rule in zip(state, values, self._rules, strict=True)
        ]

    def placeholders(self) -> list[tuple[Any, tf.Tensor]]:
        """Return each variable with a placeholder; TensorFlow would compute with constants in advance."""
        return [
            (variable, tf.compat.v1.placeholder(variable.dtype, variable.shape))
            for variable in self.variables
        ]

    def starts(self) -> list[tuple[Any, tf.Tensor]]:
        """Return each variable with zeros, where no graph is built."""
        return [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in self.variables]

    def are_of_keras(self) -> list[bool]:
        """Return for each variable whether its metrics are classes of Keras, which only add to it."""
        return [all(is_of_keras(type(owner)) for owner in owned.owners) for owned in self._owned]

    # -- of a batch, in replica context --

    def before_batch(self, totals: Sequence[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """Return each variable with the value from which this replica starts a batch."""
        return [
            (variable, tf.zeros(variable.shape, variable.dtype) if rule == _SUM else _mine(total))
            for variable, total, rule in zip(self.variables, totals, self._rules, strict=True)
        ]

    def counted(self, scope: Any) -> list[tf.Tensor]:
        """Return the values that the variables have at the end of a batch's scope, as float64."""
        return [tf.cast(scope.get_current_value(variable), tf.float64) for variable in self.variables]

    def to_add_up(
        self, counted: Sequence[tf.Tensor], totals: Sequence[tf.Tensor], size: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return what the replicas add up: a sum as it is, and other state in this replica's row of a table.

        A replica without examples keeps the state that it had.
        """
        values = []
        for value, total, rule in zip(counted, totals, self._rules, strict=True):
            if rule == _SUM:
                values.append(value)
                continue
            state = tf.where(size > 0, value, tf.cast(_mine(total), tf.float64))
            # (Not a product with a one-hot vector: the state may be infinite.)
            rows = [
                tf.where(tf.equal(_replica(), row), state, tf.zeros_like(state))
                for row in range(self._replicas)
            ]
            values.append(tf.stack(rows))
        return values

    def so_far(
        self, metric: Any, counted: Sequence[tf.Tensor], totals: Sequence[tf.Tensor], size: tf.Tensor
    ) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables of a metric with their values over the epoch's examples.

        All replicas call it at the same place of their batch, with what each has `counted` up to there.
        """
        if self._replicas > 1:
            counted = [or_zero(value, size) for value in counted]
        parts = self.to_add_up(counted, totals, size)
        places = [
            place for place, owned in enumerate(self._owned) if any(owner is metric for owner in owned.owners)
        ]
        shared = shared_mean([], [], [parts[place] for place in places], size=size).sums
        for place, value in zip(places, shared, strict=True):
            parts[place] = value
        values = self.values(self.after_batch(totals, parts))
        return [values[place] for place in places]

    def after_batch(self, totals: Sequence[tf.Tensor], added: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """Return the totals after a batch, given the sums of the replicas' counts in it."""
        return tuple(
            total + part if rule == _SUM else tf.cast(part, total.dtype)
            for total, part, rule in zip(totals, added, self._rules, strict=True)
        )


def are_sums(scope: Any, before: Sequence[tuple[Any, tf.Tensor]]) -> list[bool]:
    """Return for each variable, in the graph of a batch, whether the batch only adds to it."""
    return only_added_to([(scope.get_current_value(variable), old) for variable, old in before])


def _mine(table: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, _replica())


def _replica() -> tf.Tensor:
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)


class _Peer:
    """A metric of another replica, with tensors in the place of variables."""

    def __init__(self, metric: Any, values: dict[int, tf.Tensor]) -> None:
        self._metric, self._values = metric, values

    def __getattr__(self, name: str) -> Any:
        return self._of_peer(getattr(self._metric, name))

    def _of_peer(self, value: Any) -> Any:
        if id(value) in self._values:
            return self._values[id(value)]
        if hasattr(value, "update_state"):
            return _Peer(value, self._values)
        if isinstance(value, (list, tuple)):
            return [self._of_peer(item) for item in value]
        return value


def _owned(model: Any) -> Iterator[_Owned]:
    """Yield the variables of a model's metrics, each once, in the order of `model.metrics_variables`."""
    owned: dict[int, _Owned] = {}

    def walk(metric: Any, above: tuple[Any, ...], is_called_by_keras: bool) -> None:
        inner_metrics, is_list = metrics_within(metric)
        if is_list:
            for inner in inner_metrics:
                walk(inner, (), True)
            return
        is_kerass = is_called_by_keras and is_of_keras(type(metric))
        owners = (*above, metric)
        for variable in variables_of_metric(metric):
            owned.setdefault(id(variable), _Owned(variable, owners, is_kerass))
        for inner in inner_metrics:
            walk(inner, owners, is_kerass)

    of_losses = {id(tracker) for tracker in loss_trackers(model)}
    for metric in model.metrics:
        walk(metric, (), id(metric) in of_losses)
    for key in dict.fromkeys(map(id, model.metrics_variables)):  # a model may name a metric twice
        yield owned[key]
