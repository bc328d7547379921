"""Put a model, a strategy and the data together to something that runs epochs."""

from collections.abc import Callable, Generator
from typing import Any, Protocol

import tensorflow as tf

from tfdist.loop.checks import check_model
from tfdist.loop.coordinated import CoordinatedRunner
from tfdist.loop.executions import Totals, make_execution
from tfdist.loop.feeding import Data, distribute, distribute_to_workers
from tfdist.loop.generations import is_keras_2
from tfdist.loop.keras2 import Keras2Step
from tfdist.loop.keras3 import Keras3Step
from tfdist.loop.synchronous import SynchronousRunner

__all__ = ["Cluster", "Runner", "Session", "replica_spec"]


class Runner(Protocol):
    """Run epochs of one kind of step over one data set."""

    def epoch(
        self, steps: int | None, steps_per_execution: int, totals: Totals
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far."""


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
        self._dataset, spec = self._cluster.distribute(data)
        make = Keras2Step if is_keras_2(model) else Keras3Step
        self.step = make(model, strategy, replica_spec(spec))

    def training(self) -> Runner:
        """Run training steps on the data."""
        return self._runner(self.step.train, self._dataset)

    def testing(self, data: Data | None = None) -> Runner:
        """Run test steps, on other data if given."""
        dataset = self._dataset if data is None else self._cluster.distribute(data)[0]
        return self._runner(self.step.test, dataset)

    def end_epoch(self) -> None:
        """Let the replicas agree on what each of them may have written for itself."""
        if isinstance(self.step, Keras2Step):
            self.step.settle()

    def finish(self) -> None:
        """Do what an optimizer does when training is over: put averages of weights in place."""
        model = self._model
        if model.optimizer is not None and hasattr(model.optimizer, "finalize_variable_values"):
            with self._cluster.strategy.scope():
                model.optimizer.finalize_variable_values(model.trainable_variables)

    def _runner(self, step: Callable[[Any], Totals], dataset: Any) -> Runner:
        execution = make_execution(step)
        if self._cluster.coordinator is None:
            return SynchronousRunner(execution, dataset, eagerly=self._model.run_eagerly)
        return CoordinatedRunner(
            lambda iterator, steps: execution(iterator, steps, self.step.no_totals()),
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
