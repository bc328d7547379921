"""Combine a model, a strategy and data into phases that run epochs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import build_for, has_call, is_keras_2, keras_of, trained_variables
from tfdist._utils.keras_private import build_metrics_of_own, build_model, build_model_eagerly
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import function_of_a_model, replica_specs, worker_count
from tfdist.strategies.strategy_classes import begin_step
from tfdist.training.data.dataset_workarounds import with_none
from tfdist.training.data.distribute import Data, check_end, distribute, distribute_to_workers, is_endless
from tfdist.training.data.inspect_dataset import size_of_shuffled
from tfdist.training.data.read_by_chief import ChiefData
from tfdist.training.keras.kept_traces import Traces, kinds
from tfdist.training.keras.model_checks import check_model, check_targets
from tfdist.training.keras.model_facts import has_own
from tfdist.training.keras.optimizers.optimizer import move_into_scope
from tfdist.training.keras.rng import Randomness
from tfdist.training.keras.steps.custom_step_as_is import CustomStepAsIs
from tfdist.training.keras.steps.custom_step_on_replicas import CustomStepOnReplicas
from tfdist.training.keras.steps.keras2_step import Keras2Step
from tfdist.training.keras.steps.keras3_step import Keras3Step
from tfdist.training.keras.steps.step_base import KerasStep
from tfdist.training.parameter_servers.applied_steps import AppliedSteps, Begun
from tfdist.training.parameter_servers.await_server_writes import settle_writes
from tfdist.training.parameter_servers.sharded_keras_variables import built_on_parts, check_parts, parts_of
from tfdist.training.replicas.empty_replicas import batch_of_zeros
from tfdist.training.replicas.reduction import unpacked
from tfdist.training.runners.batches_for_workers import BatchesReadByChief, BatchesReadByWorkers
from tfdist.training.runners.coordinated_runner import CoordinatedRunner
from tfdist.training.runners.graphs_for_workers import GraphsOfBatches, WorkerGraph
from tfdist.training.runners.multi_step import Totals, make_execution
from tfdist.training.runners.synchronous_runner import SynchronousRunner
from tfdist.training.workers.same_model import check_same_model

_STEPS = {"train_step": "a training step", "test_step": "an evaluation step"}


Runner: TypeAlias = SynchronousRunner | CoordinatedRunner


class Phase(NamedTuple):
    """A step, and the runner that runs it over the data."""

    step: KerasStep
    runner: Runner


class Coordination:
    """The processes that compute: replicas in step, or a coordinator's workers."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.coordinator = None
        self.workers = 0
        if is_asynchronous(strategy):
            self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            self.workers = worker_count(strategy)

    def distribute(self, data: Data, *, is_beside_training: bool = False) -> tuple[Any, Any]:
        """Return the distributed data, and their element spec."""
        if self.coordinator is not None:
            return distribute_to_workers(data, self.strategy, self.coordinator, self.workers)
        dataset = distribute(data, self.strategy, may_copy_states=not is_beside_training)
        return dataset, dataset.element_spec

    def coordinated_runner(
        self, graph: Any, dataset: Any, merge: Callable[[Totals, Totals], Totals] = lambda totals, _: totals
    ) -> CoordinatedRunner:
        """Return a runner of `graph_on_workers` on the coordinator's workers, over distributed data."""
        kind = BatchesReadByChief if isinstance(dataset, ChiefData) else BatchesReadByWorkers
        return CoordinatedRunner(graph, kind(graph, dataset), self.coordinator, self.workers, merge=merge)


def graph_on_workers(execution: Callable[..., Any], dataset: Any, applied: AppliedSteps | None = None) -> Any:
    """Return the graph of an execution on workers, over data of the kind of this distributed data set."""
    return (GraphsOfBatches if isinstance(dataset, ChiefData) else WorkerGraph)(execution, applied)


class Session:
    """The state that training and evaluation of one model under one strategy share."""

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        data: Data,
        *,
        traces: Traces | None = None,
        steps: Sequence[str] = ("train_step", "test_step"),
        validation_data: Data | None = None,
        is_saved: bool = False,
    ) -> None:
        """Check the model, distribute the data, and build the model.

        Args:
            model: The compiled model.
            strategy: The strategy.
            data: The data.
            traces: The traces of earlier sessions of the model; None if nothing is kept.
            steps: The steps of the phases that there will be, train_step first.
            validation_data: The data of the test phase; None for the same ones, or for those of `testing`.
            is_saved: Whether checkpoints are made, for which all variables must exist before the first step.
        """
        self._cluster = Coordination(strategy)
        self._model = model
        self._traces = Traces() if traces is None else traces
        self._keras_step: Any = None
        self._steps = steps
        check_model(model, strategy)
        check_same_model(model, strategy)
        self._dataset, self._spec = self._cluster.distribute(data)
        self._tested = self._dataset, self._spec
        if validation_data is not None:
            self._tested = self._cluster.distribute(validation_data, is_beside_training=True)
        self._begins_again_after = size_of_shuffled(data)
        self._tests_begin_again_after = size_of_shuffled(validation_data or data)
        check_targets(model, replica_spec(self._spec), steps[0])
        self._build(is_saved=is_saved)
        check_parts(model)

    def _build(self, *, is_saved: bool) -> None:
        """Build the model, and with Keras 3 its metrics and its optimizer, which Keras 2 builds in a step."""
        model, is_own = self._model, {name: has_own(self._model, name) for name in self._steps}
        has_own_steps = all(is_own.values())
        if has_own_steps and not (is_saved or model.built):
            return  # they may call the model with something else than x, as a decoder's does
        # A step of Keras calls it with x.
        is_own_first = is_own[self._steps[0]]
        batch = replica_spec(self._tested[1] if is_own_first and not has_own_steps else self._spec)
        if is_keras_2(model):
            with self.strategy.scope():
                build_for(model, unpacked(batch)[0])
            return
        if self._is_shared and model.optimizer is not None:
            move_into_scope(model.optimizer, self.strategy)
        if not has_call(model):
            return
        with self.strategy.scope(), built_on_parts(model.optimizer):
            try:
                build_model(model, batch)
                build_metrics_of_own(keras_of(model), model, unpacked(batch))
            except Exception:
                # A step of its own calls it in its own way, and builds what else it needs.
                if not ((is_own_first and model.built) or self._is_built_eagerly(batch)):
                    raise

    def _is_built_eagerly(self, batch: Any) -> bool:
        """Build a model that runs eagerly as Keras does, without a graph; return False if that fails too.

        It may do what no graph can, such as call a metric of scikit-learn.
        """
        runs_here = self._model.run_eagerly and self._cluster.coordinator is None
        zeros = batch_of_zeros(batch) if runs_here else None
        if zeros is None:
            return False
        try:
            build_model_eagerly(keras_of(self._model), self._model, unpacked(zeros))
        except Exception:  # noqa: BLE001  # it may be one about the zeros; the caller raises the first one
            return False
        return True

    def check_ends(self, *, steps: str = "", test_steps: str = "") -> None:
        """Refuse data that never end, where nobody has passed the numbers of steps of these names.

        Raises:
            DataError: They never end.
        """
        for dataset, wanted in ((self._dataset, steps), (self._tested[0], test_steps)):
            if wanted:
                check_end(dataset, wanted)

    @property
    def spec(self) -> Any:
        """Return the element spec of the distributed data."""
        return self._spec

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """Return the strategy that trains."""
        return self._cluster.strategy

    def training(self, *, stops_at_failure: bool = False) -> Phase:
        """Return the training phase; with `stops_at_failure`, a NaN or infinite loss ends an execution."""
        begin_step(self.strategy, self._model)  # whose rounding errors a checkpoint may restore
        return self._phase(
            "train_step", self._dataset, self._spec, self._begins_again_after, stops_at_failure
        )

    def distribute(self, data: Data) -> Any:
        """Distribute other data of the same kind, for `rewind`; see `Coordination.distribute`."""
        return self._cluster.distribute(data)[0]

    def testing(self, data: Data | None = None) -> Phase:
        """Return the test phase for the session's data, or for other data if given."""
        dataset, spec = self._tested if data is None else self._cluster.distribute(data)
        check_targets(self._model, replica_spec(spec), "test_step")
        again = self._tests_begin_again_after if data is None else size_of_shuffled(data)
        return self._phase("test_step", dataset, spec, again)

    @property
    def random_states(self) -> list[Any]:
        """Return the states of random generators that belong to no layer."""
        step = self._new_step() if self._keras_step is None else self._keras_step
        return step.unseeded

    def finish(self) -> None:
        """Finish training as Keras's optimizer does: put its averages of the weights, if any, in place."""
        model = self._model
        if model.optimizer is not None and hasattr(model.optimizer, "finalize_variable_values"):
            with self._cluster.strategy.scope():
                variables = model.trainable_variables
                own = variables if is_keras_2(model) else parts_of(variables)
                model.optimizer.finalize_variable_values(own)

    def _phase(
        self, name: str, dataset: Any, spec: Any, begins_again_after: int | None, stops: bool = False
    ) -> Phase:
        # A model may have a custom train_step and Keras's test_step, or the other way round.
        is_own = has_own(self._model, name)
        kind = repr(spec) if is_own else kinds(replica_spec(spec))
        key = (name, self.strategy, kind, isinstance(dataset, ChiefData), is_endless(dataset), stops)
        if not is_own and key in self._traces.made:
            self._check_metrics(self._traces.made[key][0])
        make = self._of_own_step if is_own else self._of_keras_step
        step, execute = self._traces.get(key, lambda: make(name, dataset, spec, stops))
        if not is_own:
            self._keras_step = self._keras_step or step
        if self._cluster.coordinator is None:
            runner = SynchronousRunner(
                execute,
                dataset,
                step=_STEPS[name],
                settle_writes=functools.partial(settle_writes, self.strategy),
                begins_again_after=None if is_keras_2(self._model) else begins_again_after,
            )
            return Phase(step, runner)
        return Phase(step, self._cluster.coordinated_runner(execute, dataset, step.merged))

    def _of_own_step(self, name: str, dataset: Any, spec: Any, stops: bool) -> tuple[KerasStep, Any]:
        """Return the step of the model's own method, and what executes it."""
        if self._is_shared and not is_keras_2(self._model):
            spec, randomness = replica_spec(spec), self._randomness
            custom = CustomStepOnReplicas(self._model, self.strategy, name, spec, randomness)
            applied = self._noting_applied_steps(custom) if name == "train_step" else None
            is_failing = custom.is_failing if stops else None
            run = self._training(custom.run) if name == "train_step" else custom.run
            execution = make_execution(run, is_failing=is_failing, applied=applied)
            return custom, self._graph(execution, dataset, custom, applied)
        own = CustomStepAsIs(self._model, self.strategy, name, spec, stops_at_failure=stops)
        return own, own.execution  # makes its own graphs

    def _of_keras_step(self, name: str, dataset: Any, spec: Any, stops: bool) -> tuple[KerasStep, Any]:
        """Return the step of Keras's own method, and what executes it."""
        step = self._new_step()
        self._check_metrics(step)
        applied = None
        if name == "train_step":
            applied, is_failing = self._noting_applied_steps(step), step.is_failing if stops else None
            execution = make_execution(self._training(step.train), is_failing=is_failing, applied=applied)
        else:
            spec = replica_spec(spec)
            execution = make_execution(step.test, ps_cache=lambda: step.ps_cache(spec))
        return step, self._graph(execution, dataset, step, applied)

    def _training(self, train: Callable[..., Totals]) -> Callable[..., Totals]:
        """Return a training step that the exchange of gradients knows as one of the model."""
        strategy, model = self.strategy, self._model

        def step(*args: Any) -> Totals:
            begin_step(strategy, model)
            return train(*args)

        return step

    def _noting_applied_steps(self, step: KerasStep) -> AppliedSteps | None:
        return None if self._cluster.coordinator is None else step.noting_applied_steps()

    def _new_step(self) -> Keras2Step | Keras3Step:
        """Return the step that trains what is trainable now; all phases share it, and its random numbers."""

        def made() -> Keras2Step | Keras3Step:
            if is_keras_2(self._model):
                return Keras2Step(self._model, self.strategy)
            return Keras3Step(self._model, self.strategy, self._randomness)

        return self._traces.get((self.strategy, *map(id, trained_variables(self._model))), made)

    @property
    def _randomness(self) -> Randomness:
        return randomness_of(self._model, self.strategy, self._traces)

    def _check_metrics(self, step: Keras2Step | Keras3Step) -> None:
        """Check the metrics of a step; forget the graphs that merge them in another way."""
        specs = {"train_step": replica_spec(self._spec), "test_step": replica_spec(self._tested[1])}
        names = [name for name in self._steps if not has_own(self._model, name)]
        if step.check_metrics([(name == "train_step", specs[name]) for name in names]):
            self._traces.keep_only(step, self._randomness)

    @property
    def _is_shared(self) -> bool:
        """Return whether several replicas or workers share the model."""
        return self._cluster.coordinator is not None or self.strategy.num_replicas_in_sync > 1

    def _graph(
        self, execution: Callable[..., Any], dataset: Any, step: KerasStep, applied: AppliedSteps | None
    ) -> Any:
        """Return the graph of an execution over data like these; the execution itself if it runs eagerly."""
        if self._cluster.coordinator is None:
            return execution if self._model.run_eagerly else function_of_a_model(execution)

        def counted_apart(iterator: Any, steps: tf.Tensor, begun: Begun) -> Any:
            return execution(iterator, steps, step.empty_totals(), begun)

        return graph_on_workers(counted_apart, dataset, applied)


def randomness_of(model: Any, strategy: tf.distribute.Strategy, traces: Traces) -> Randomness:
    """Return the random generators that all steps of a Keras 3 model draw from."""
    return traces.get(("random generators", strategy), lambda: Randomness(model, strategy))


def replica_spec(element_spec: Any) -> Any:
    """Return the element spec of one replica's part of a batch."""
    return with_none(tf.nest.map_structure(lambda spec: replica_specs(spec)[0], element_spec))
