"""Define the common part of the steps of models: what totals count, and what a phase asks of a step."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, keras_of
from tfdist._utils.keras_private import variable_of_tensorflow
from tfdist.errors import ConfigError
from tfdist.training.keras.losses_and_metrics.metric_state import MetricState
from tfdist.training.keras.model_facts import uses_xla
from tfdist.training.keras.rng import Randomness
from tfdist.training.keras.stateless_scopes import functions_run_in_place
from tfdist.training.parameter_servers.applied_steps import AppliedSteps
from tfdist.training.parameter_servers.sharded_keras_variables import variables_read_in_place
from tfdist.training.parameter_servers.variable_cache import PsCache
from tfdist.training.runners.multi_step import Totals
from tfdist.training.runners.replica_stats import Failure, ReplicaStats

_Result = TypeVar("_Result")


@contextlib.contextmanager
def traced_in_place(model: Any, randomness: Randomness) -> Iterator[None]:
    """Trace what a model does in the graph of its caller, where replicas draw numbers and share writes."""
    with functions_run_in_place(), randomness.drawing(), variables_read_in_place(model):
        yield


def compiled(
    model: Any, strategy: tf.distribute.Strategy, compute: Callable[[Any], _Result]
) -> Callable[[Any], _Result]:
    """Return what a replica computes, compiled by XLA where the model asks for it."""
    if not uses_xla(model, strategy):
        return compute
    function: Callable[[Any], _Result] = tf.function(compute, jit_compile=True, autograph=False)
    return function


class KerasStep:
    """A step of a model: its totals have the table of step statistics, and its metrics count by themselves.

    Attributes:
        writes_in_tests: Whether a test, once traced, writes to variables besides those of metrics.
    """

    writes_in_tests = False

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        self._keras, self._model, self._strategy = keras_of(model), model, strategy
        self._replica_stats = ReplicaStats(strategy)
        self._applied: AppliedSteps | None = None

    def noting_applied_steps(self) -> AppliedSteps | None:
        """Return where training notes the steps of asynchronous workers; None if nothing is updated."""
        variables = all_variables(self._model)
        if self._applied is None and variables:
            counters = self._step_counters()
            are_noted_by_update = len(counters) == 1
            beside = counters[0] if are_noted_by_update else variables[0]
            self._applied = AppliedSteps(
                self._strategy, _resource_of(beside), are_noted_by_update=are_noted_by_update
            )
        return self._applied

    def _step_counters(self) -> list[Any]:
        """Return the variables that count each step of the optimizers, if they note it too."""
        return []

    @property
    def unseeded(self) -> list[Any]:
        """Return the states of the random generators that belong to no layer, which only Keras 3 has."""
        return []

    def check_metrics(self, phases: Sequence[tuple[bool, Any]]) -> bool:
        """Return whether the states of metrics are merged in another way than before.

        Each phase trains or tests, on batches of a spec.
        """
        del phases
        return False

    def ps_cache(self, spec: Any) -> PsCache | None:
        """Return the cache of what an asynchronous worker fetches once for many tests, if it does."""
        del spec
        return None

    def begin(self) -> Totals:
        """Reset the metrics, and return the totals to start from."""
        with self._strategy.scope():
            self._model.reset_metrics()
        return self.empty_totals()

    def empty_totals(self) -> Totals:
        """Return the totals of no examples."""
        return Totals((), self._replica_stats.zeros())

    def merged(self, totals: Totals, others: Totals) -> Totals:
        """Return totals merged with those of other steps."""
        return Totals((), totals.stats + others.stats)

    def since(self, before: Totals, now: Totals) -> Totals:
        """Return what was counted from one point to another."""
        return Totals((), now.stats - before.stats)

    def store(self, totals: Totals) -> None:
        """Write the totals to the metrics' own variables, if they are not counted there."""

    def results(self, totals: Totals) -> dict[str, Any]:
        """Return the metrics' results."""
        raise NotImplementedError

    def batch_logs(self, totals: Totals) -> dict[str, Any]:
        """Return the logs of a batch, which callbacks get: the metrics' results."""
        return self.results(totals)

    def end_epoch(self) -> None:
        """Do nothing: no replica writes anything for itself."""

    def times(self, totals: Totals) -> tf.Tensor | None:
        """Return the table of `ReplicaStats`, a row for each replica or asynchronous worker, if known."""
        return totals.stats

    def is_failing(self, totals: Totals) -> tf.Tensor:
        """Return, inside a graph, whether a loss was NaN or infinite."""
        return self._replica_stats.is_failing(totals.stats)

    def failure(self, totals: Totals) -> Failure | None:
        """Return which replicas' losses were NaN or infinite, if any."""
        return self._replica_stats.failure(totals.stats)

    def kept(self, totals: Totals) -> list[Any]:
        """Return what a checkpoint keeps of the metrics in the middle of an epoch."""
        return list(totals.metrics)

    def resumed(self, kept: Sequence[Any]) -> Totals:
        """Return the totals of an epoch that continues from what `kept` returned."""
        begun = self.begin()
        check_metrics_of_checkpoint(begun.metrics, kept)
        values = zip(kept, begun.metrics, strict=True)
        return Totals(tuple(tf.cast(value, old.dtype) for value, old in values), begun.stats)


class MetricStep(KerasStep):
    """A step whose totals are those of the metrics, followed by other values of the last batch, if any."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        super().__init__(model, strategy)
        self._metrics = MetricState(model, strategy)

    def begin(self) -> Totals:
        """Reset the metrics, and return the totals to start from."""
        return Totals((*self._metrics.reset(), *self._no_others()), self._replica_stats.zeros())

    def empty_totals(self) -> Totals:
        """Return the totals of no examples."""
        return Totals((*self._metrics.zeros(), *self._no_others()), self._replica_stats.zeros())

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


def _resource_of(variable: Any) -> Any:
    """Return TensorFlow's variable of a variable of Keras; of one in shards, the first."""
    whole = variable_of_tensorflow(variable)
    return getattr(whole, "variables", [whole])[0]


def value_of(value: Any) -> Any:
    """Return the value of a result, which may be a variable of Keras 3."""
    return tf.convert_to_tensor(value) if hasattr(value, "path") else value


def check_metrics_of_checkpoint(mine: Sequence[Any], kept: Sequence[Any]) -> None:
    """Raise ConfigError if what a checkpoint keeps of the metrics has other shapes than theirs."""
    if [tuple(np.shape(value)) for value in mine] != [tuple(np.shape(value)) for value in kept]:
        problem = "has other metrics, or another number of replicas counts them"
        raise ConfigError("the checkpoint", problem, remedy="Compile the model with the same metrics")


def check_log(where: str, value: tf.Tensor) -> None:
    """Raise ConfigError for a value in the logs of a step that has a number for each example."""
    if not value.shape.is_fully_defined():
        problem = f"returns a tensor of the unknown shape {value.shape} in its logs, as one for each example"
        raise ConfigError(where, problem, remedy="Return one number, such as its mean")
