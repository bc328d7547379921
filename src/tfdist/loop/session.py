"""Put a model, a strategy and the data together to something that runs epochs."""

import functools
from collections.abc import Callable, Generator
from typing import Any, Protocol

import tensorflow as tf

from tfdist.loop.checks import check_model, has_own
from tfdist.loop.coordinated import CoordinatedRunner
from tfdist.loop.executions import Totals, make_execution
from tfdist.loop.feeding import Data, distribute, distribute_to_workers
from tfdist.loop.gauge import Failure
from tfdist.loop.generations import is_keras_2
from tfdist.loop.keras2 import Keras2Step
from tfdist.loop.keras3 import Keras3Step
from tfdist.loop.own_steps import OwnStep
from tfdist.loop.shards import built_on_parts, check_parts, parts_of
from tfdist.loop.synchronous import SynchronousRunner

__all__ = ["Cluster", "Runner", "Session", "Step", "replica_spec"]


class Runner(Protocol):
    """Run epochs of one kind of step over one data set.

    Attributes:
        waited: The seconds that the steps have waited for data, in this process or in all workers together.
    """

    waited: float

    def rewind(self, dataset: Any = None) -> None:
        """Let the next epoch begin with the data's beginning, or with that of others, handed out alike."""

    def epoch(
        self, steps: int | None, steps_per_execution: int, totals: Totals
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far."""

    def wind_up(self) -> None:
        """Let the epoch that is running end with what has been begun."""


class Step(Protocol):
    """Say what came of the steps that were run; the totals are sums over them, where these add up."""

    adds_up: bool

    def no_totals(self) -> Totals:
        """Give what the totals start from."""

    def results(self, totals: Totals) -> dict[str, Any]:
        """Give the metrics' results."""

    def times(self, totals: Totals) -> tf.Tensor | None:
        """Give seconds and steps of each replica or worker, where they are known."""

    def is_failing(self, totals: Totals) -> tf.Tensor:
        """Say, inside a graph, whether a loss was no number."""

    def failure(self, totals: Totals) -> Failure | None:
        """Say which replicas' losses were no numbers, if any."""

    def reset(self) -> None:
        """Start the metrics anew."""


class Cluster:
    """Know who computes: replicas in step, or a coordinator's workers."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.coordinator = None
        self.workers = 0
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            self.workers = strategy.extended._num_workers

    def distribute(self, data: Data) -> tuple[Any, Any]:
        """Give the data handed out, and their element spec."""
        if self.coordinator is not None:
            return distribute_to_workers(data, self.strategy, self.coordinator, self.workers)
        dataset = distribute(data, self.strategy)
        return dataset, dataset.element_spec


class Session:
    """Hold what training and evaluation of one model under one strategy share."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, data: Data) -> None:
        self._cluster = Cluster(strategy)
        self._model = model
        check_model(model, strategy, is_coordinated=self._cluster.coordinator is not None)
        self._dataset, self._spec = self._cluster.distribute(data)
        if not is_keras_2(model):
            with strategy.scope(), built_on_parts(model.optimizer):
                model._symbolic_build(data_batch=replica_spec(self._spec))
        check_parts(model)
        # A model may train in a way of its own, and be tested as all are; or the other way round.
        self.train_step: Step
        self.test_step: Step

    def training(self, *, stops_at_failure: bool = False) -> Runner:
        """Run training steps on the data; a loss that is no number may end an execution."""
        self.train_step, runner = self._way("train_step", self._dataset, self._spec, stops_at_failure)
        return runner

    def distribute(self, data: Data) -> Any:
        """Hand other data of the same kind out, for `rewind`."""
        return self._cluster.distribute(data)[0]

    def testing(self, data: Data | None = None) -> Runner:
        """Run test steps, on other data if given."""
        dataset, spec = (self._dataset, self._spec) if data is None else self._cluster.distribute(data)
        self.test_step, runner = self._way("test_step", dataset, spec)
        return runner

    @property
    def random_states(self) -> list[Any]:
        """Give the states of random generators that belong to no layer."""
        return self._keras_step.unseeded if isinstance(self._keras_step, Keras3Step) else []

    def end_epoch(self) -> None:
        """Let the replicas agree on what each of them may have written for itself."""
        if isinstance(self.train_step, Keras2Step):
            self.train_step.settle()

    def finish(self) -> None:
        """Do what an optimizer does when training is over: put averages of weights in place."""
        model = self._model
        if model.optimizer is not None and hasattr(model.optimizer, "finalize_variable_values"):
            with self._cluster.strategy.scope():
                variables = model.trainable_variables
                own = variables if is_keras_2(model) else parts_of(variables)
                model.optimizer.finalize_variable_values(own)

    @functools.cached_property
    def _keras_step(self) -> Keras2Step | Keras3Step:
        make = Keras2Step if is_keras_2(self._model) else Keras3Step
        return make(self._model, self._cluster.strategy)

    def _way(self, name: str, dataset: Any, spec: Any, stops: bool = False) -> tuple[Step, Runner]:
        if has_own(self._model, name):
            own = OwnStep(self._model, self._cluster.strategy, name, spec, stops_at_failure=stops)
            return own, SynchronousRunner(own.execution, dataset, eagerly=True)  # it makes its own graphs
        step = self._keras_step
        if name == "train_step":
            execution = make_execution(step.train, is_failing=step.is_failing if stops else None)
        elif isinstance(step, Keras3Step):
            spec = replica_spec(spec)
            execution = make_execution(step.test, standing=lambda: step.standing(spec))
        else:
            execution = make_execution(step.test)
        return step, self._runner(execution, dataset)

    def _runner(self, execution: Callable[..., Any], dataset: Any) -> Runner:
        if self._cluster.coordinator is None:
            return SynchronousRunner(execution, dataset, eagerly=self._model.run_eagerly)
        return CoordinatedRunner(
            lambda iterator, steps: execution(iterator, steps, self._keras_step.no_totals()),
            dataset,
            self._cluster.coordinator,
            self._cluster.workers,
        )


def replica_spec(element_spec: Any) -> Any:
    """Give the spec of what one replica gets."""

    def of_one(spec: Any) -> Any:
        values = getattr(spec, "_value_specs", None)
        return spec if values is None else values[0]

    return tf.nest.map_structure(of_one, element_spec)
