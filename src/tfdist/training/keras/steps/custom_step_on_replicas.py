"""Run a custom train_step or test_step of a Keras 3 model on several replicas, as if there were one process.

The model's own method runs on each replica's part of a batch. While TensorFlow traces it, tfdist

- catches what it writes to Keras variables, and combines the results of the replicas before any of them
  changes: counts of metrics are added up, and other state is averaged over the examples;
- scales each loss that is no mean over the examples so that the mean over the examples of all replicas is
  the loss of the whole batch, where the method computes it of Keras's losses or of its own;
- averages the gradients over the examples: as soon as they are computed if the method reads or changes them,
  and otherwise in `optimizer.apply`, which it takes over, to clip and apply them once;
- returns 1 as `num_replicas_in_sync`, so that a loss is right whether or not the method divides by it.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import flat_logs
from tfdist._utils.keras_private import compiled_metrics_are_built, layers_of
from tfdist._utils.nested_optimizers import is_loss_scaler
from tfdist._utils.tf_private import PolymorphicFunction, code_of, traced_by_chief
from tfdist.errors import ConfigError
from tfdist.training.keras.layer_writes import LayerWrites
from tfdist.training.keras.losses_and_metrics.loss_checks import INEXACT, LossWarning, check_numbers
from tfdist.training.keras.losses_and_metrics.loss_divisors import losses_of_one_process, recorded_divisors
from tfdist.training.keras.losses_and_metrics.metric_state import MetricState, are_sums
from tfdist.training.keras.model_checks import check_optimizer
from tfdist.training.keras.optimizers.optimizer import counter_of_all_steps, move_into_scope
from tfdist.training.keras.rng import GraphSeed, Randomness
from tfdist.training.keras.stateless_scopes import (
    current_graph,
    functions_run_in_place,
    non_trainable_scope,
    variables_made_in,
)
from tfdist.training.keras.steps.custom_step_gradients import is_changed_in, is_read
from tfdist.training.keras.steps.custom_step_losses import part_of_loss, part_of_number
from tfdist.training.keras.steps.custom_step_replaced_methods import (
    OTHER_GRAPHS,
    ReplacedMethods,
    optimizers_apply_by,
)
from tfdist.training.keras.steps.custom_step_trace_state import ReplicaTrace
from tfdist.training.keras.steps.step_base import MetricStep, check_log, traced_in_place, value_of
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of
from tfdist.training.replicas.call_synchronized_layers import (
    has_synchronized_layers,
    replicas_called_together,
)
from tfdist.training.replicas.empty_replicas import batch_of_zeros, or_zero, with_an_example
from tfdist.training.replicas.hide_other_replicas import replicas_hidden, replicas_hideable
from tfdist.training.replicas.reduction import batch_size, rows_of, shared_mean, shares_of, without_fixed_size
from tfdist.training.runners.multi_step import Totals

_GRADIENTS_OF_PARTS = (
    "%s of model %s: reads or changes gradients of weights within %s, where replicas cannot exchange them;"
    " each has those of its part of the batch, and the mean of what the step makes of them counts"
)
_RESULT_OF_PART = (
    "%s of model %s: computes with the result of metric %s within %s, where replicas cannot exchange it;"
    " each has that of its part of the batch"
)


@dataclass(frozen=True)
class _Log:
    """A value in the logs of a step: a value in the result of a metric, or else a tensor of some shape."""

    metric: Any
    place: int
    like: tf.TensorSpec


class CustomStepOnReplicas(MetricStep):
    """A step that calls the model's own method on each replica's part of a batch, and shares the results.

    The totals are those of the metrics, followed by the other values in the logs of the last batch.
    """

    def __init__(
        self, model: Any, strategy: tf.distribute.Strategy, name: str, spec: Any, randomness: Randomness
    ) -> None:
        """Trace `train_step` or `test_step` once, to find out what it uses and what it returns.

        Raises:
            ConfigError: Several replicas cannot share what the method computes.
        """
        super().__init__(model, strategy)
        if len(parts_of(model.trainable_variables)) > len(model.trainable_variables):
            problem = f"overrides {name}, which cannot use variables in shards"
            raise ConfigError(
                f"model {model.name}", problem, remedy="Leave out min_shard_bytes and max_shards"
            )
        own = getattr(model, name)
        # Within a tf.function, replicas could not exchange gradients.
        self._own = code_of(own) if isinstance(own, PolymorphicFunction) else own
        self._name = name
        self._randomness = randomness
        self._writes = LayerWrites(model, strategy, randomness, method=name)
        self._replicas = strategy.num_replicas_in_sync
        self._is_synchronized = self._replicas > 1 and has_synchronized_layers(model)
        self._loss_warning, self._gradient_warning, self._result_warning = (LossWarning() for _ in range(3))
        self._written: list[Any] = []
        self._logs: Any = {}
        self._methods = ReplacedMethods(model, strategy, name, self._loss_warning, lambda: self._applied)
        self._build(spec)
        randomness.find(model)
        self._metrics = MetricState(model, strategy)  # also of those that are built now
        self._probe(spec)

    # -- of an epoch --

    def results(self, totals: Totals) -> dict[str, Any]:
        """Return the metrics' results if the logs name exactly the metrics; otherwise the logs."""
        with self._keras.StatelessScope(self._metrics.values(self._split(totals)[0])):
            metrics = tf.nest.map_structure(value_of, self._model.get_metrics_result())
        return metrics if set(metrics) == set(self._logs) else self.batch_logs(totals)

    def batch_logs(self, totals: Totals) -> dict[str, Any]:
        """Return the logs, with the results of metrics over all examples."""
        counted, logs = self._split(totals)
        with self._keras.StatelessScope(self._metrics.values(counted)):
            values, places = [], iter(logs)
            for log in self._flat_logs:
                result = None if log.metric is None else tf.nest.flatten(log.metric.result())[log.place]
                values.append(next(places) if result is None else value_of(result))
        return flat_logs(tf.nest.pack_sequence_as(self._logs, values))

    @property
    def _flat_logs(self) -> list[_Log]:
        return tf.nest.flatten(self._logs)  # type: ignore[no-any-return]

    def _no_others(self) -> list[tf.Tensor]:
        return [tf.zeros(log.like.shape, log.like.dtype) for log in self._flat_logs if log.metric is None]

    def _step_counters(self) -> list[Any]:
        counters = [counter_of_all_steps(use.optimizer) for use in self._methods.uses]
        return [] if any(counter is None for counter in counters) else counters

    # -- of a batch, in cross-replica context --

    def run(self, batch: Any, totals: Totals) -> Totals:
        """Run the step on a batch, each replica on its part; return the totals after it."""
        with self._tracing():
            results = self._strategy.run(self._on_replica, args=(batch, totals, GraphSeed(self._strategy)))
        sums, state, logs = (
            [self._strategy.experimental_local_results(value)[0] for value in part] for part in results
        )
        for variable, value in zip(self._written, state, strict=True):
            self._randomness.write(variable, value)
        *counted, stats = sums
        metrics = self._metrics.after_batch(self._split(totals)[0], counted)
        return Totals((*metrics, *logs), totals.stats + stats)

    def _build(self, spec: Any) -> None:
        """Build the layers that the step calls, and the metrics, if the model was not built for the data.

        TensorFlow refuses the gradient of a variable that is not there yet. So each attempt builds the layers
        up to the next gradient.
        """
        count = -1
        while count < len(self._model.variables) and not _is_built(self._model):
            count = len(self._model.variables)
            with (
                variables_made_in(self._strategy, self._keras),
                optimizers_apply_by(self._keras, lambda *_, **__: None),
                functions_run_in_place(),
                traced_by_chief(self._strategy),
                contextlib.suppress(Exception),  # a real error comes again when all replicas are traced
            ):
                tf.function(
                    lambda batch: self._strategy.run(self._trace_alone, args=(batch,)), autograph=False
                ).get_concrete_function(spec)

    def _trace_alone(self, batch: Any) -> None:
        with non_trainable_scope(self._keras, []):
            self._own(without_fixed_size(batch, self._replicas))

    def _probe(self, spec: Any) -> None:
        """Trace the step in a graph that is thrown away, and build the optimizers that it uses."""
        flags: list[list[bool]] = []

        def traced(batch: Any, seed: GraphSeed) -> None:
            is_traced = not tf.executing_eagerly()
            batch = without_fixed_size(batch, self._replicas)
            before = self._metrics.placeholders() if is_traced else self._metrics.starts()
            replica = self._replica(batch, before, tf.ones([]), seed)
            replica.uses = self._methods.uses = []
            self._logs = self._described(self._called(batch, replica), replica)
            if not is_traced:  # nothing shows what it reads
                self._methods.changes_gradients = True
                self._methods.reads_of_results |= set(map(id, self._metrics.metrics))
                flags.append(self._metrics.are_of_keras())
                return
            self._methods.changes_gradients |= replica.changes_gradients or any(
                map(is_read, replica.gradients)
            )
            self._warn_of_gradients(replica)
            self._note_reads_of_results(replica)
            flags.append(are_sums(replica.scope, before))
            self._metrics.warn_of_batches(replica.scope, before)

        def run(batch: Any) -> None:
            self._strategy.run(traced, args=(batch, GraphSeed(self._strategy)))

        with self._tracing(), traced_by_chief(self._strategy):
            try:
                tf.function(run, autograph=False).get_concrete_function(spec)
            except Exception:
                zeros = batch_of_zeros(spec) if self._model.run_eagerly else None
                if zeros is None:
                    raise
                flags.clear()
                run(zeros)  # which may read values, as a step that prints them does
        if self._metrics.needs_check:
            self._metrics.check([all(column) for column in zip(*flags, strict=True)])
        for use in self._methods.uses:
            check_optimizer(use.optimizer, self._strategy)
            move_into_scope(use.optimizer, self._strategy)
            if not use.optimizer.built:
                with self._strategy.scope():
                    use.optimizer.build(use.variables)

    def _note_reads_of_results(self, replica: ReplicaTrace) -> None:
        """Note with the results of which metrics the step computes, besides returning them in its logs."""
        for value, metric, _ in replica.results:
            if not tf.is_tensor(value) or not is_read(value):
                continue
            self._methods.reads_of_results.add(id(metric))
            if value.graph is not replica.graph and self._replicas > 1:
                self._result_warning.log(
                    _RESULT_OF_PART, self._name, self._model.name, metric.name, OTHER_GRAPHS
                )

    def _warn_of_gradients(self, replica: ReplicaTrace) -> None:
        """Warn of gradients that the step reads or changes where replicas cannot exchange them."""
        is_within_tape = any(map(is_read, replica.gradients_in_other_tapes))
        if is_within_tape or is_changed_in(replica.gradients_in_other_graphs, replica.applied):
            where = "a tape that still records" if is_within_tape else OTHER_GRAPHS
            self._gradient_warning.log(_GRADIENTS_OF_PARTS, self._name, self._model.name, where)

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        with (
            losses_of_one_process(self._keras),
            traced_in_place(self._model, self._randomness),
            replicas_hideable(),
            self._methods.replaced(self._metrics),
            replicas_called_together(self._keras, self._model, self._replicas),
        ):
            yield

    # -- in replica context --

    def _on_replica(
        self, data: Any, totals: Totals, seed: GraphSeed
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        data = without_fixed_size(data, self._replicas)
        size = batch_size(data)
        begun, data = self._replica_stats.begun(data)
        counted, _ = self._split(totals)
        replica = self._replica(data, self._metrics.before_batch(counted), self._share(size), seed)
        replica.totals = counted
        if self._replicas > 1 and not self._is_synchronized:
            data = with_an_example(data, size)
        found = self._called(data, replica)
        values = tf.nest.flatten(found)
        losses = tf.nest.flatten(found.get("loss", ()))
        loss = tf.add_n([tf.zeros([], tf.float64), *(tf.reduce_sum(_float64(value)) for value in losses)])
        logs = [value for value, log in zip(values, self._flat_logs, strict=True) if log.metric is None]
        logs = [part_of_number(value, replica) for value in logs] if self._replicas > 1 else logs
        metrics = [self._or_zero(value, size) for value in self._metrics.counted(replica.scope)]
        state = self._state(replica)
        stats = self._replica_stats.ended(begun, values, self._or_zero(loss, size), size)
        shared = shared_mean(
            [],
            [self._or_zero(tf.convert_to_tensor(value), size) for value in (*state, *logs)],
            [*self._metrics.to_add_up(metrics, counted, size), stats],
            size=size,
        )
        return shared.sums, shared.state[: len(state)], shared.state[len(state) :]

    def _replica(
        self, data: Any, metrics: list[tuple[Any, tf.Tensor]], share: tf.Tensor, seed: GraphSeed
    ) -> ReplicaTrace:
        scalers = [use.optimizer for use in self._methods.uses if is_loss_scaler(use.optimizer)]
        # Other workers may change a factor while this one computes. So it is read once.
        scales = {id(scaler): tf.identity(scaler.dynamic_scale.value) for scaler in scalers}
        factors = [(scaler.dynamic_scale, scales[id(scaler)]) for scaler in scalers]
        seeds = self._randomness.snapshot()
        scope = non_trainable_scope(self._keras, [*metrics, *seeds, *factors])
        return ReplicaTrace(scope, data, batch_size(data), share, current_graph(), seed, seeds, scales)

    def _share(self, size: tf.Tensor) -> tf.Tensor:
        """Return the replica's share of a number that has a part on each replica."""
        if self._replicas == 1:
            return tf.ones([])
        [share] = shares_of([size])
        return share

    def _called(self, data: Any, replica: ReplicaTrace) -> dict[str, Any]:
        """Call the model's own method in the state of one process."""
        part = functools.partial(part_of_loss, replica=replica) if self._replicas > 1 else None
        replica.inputs = [each for each in tf.nest.flatten(data) if isinstance(each, tf.Tensor)]
        with (
            self._methods.on(replica),
            replica.scope,
            self._randomness.unseeded_from_here(),
            recorded_divisors(rows_of(data), share=part) as divisors,
            replica.seed.of_this_replica(),
            replicas_hidden(),
        ):
            found = self._own(data)
        if not isinstance(found, dict):
            received = f"a {type(found).__name__}"
            expected = f"a dict from {self._name}"
            raise ConfigError(f"model {self._model.name}", expected=expected, received=received)
        if self._replicas > 1:
            self._loss_warning.log_mixed_examples(divisors)
            known = [each for each in divisors if each.kind != "number" or id(each.loss) in replica.means]
            if check_numbers(known):
                self._loss_warning.log(INEXACT)
        return found

    def _described(self, found: dict[str, Any], replica: ReplicaTrace) -> Any:
        def described(value: Any) -> _Log:
            for result, metric, index in replica.results:
                if result is value:
                    return _Log(metric, index, tf.TensorSpec([]))
            tensor = tf.convert_to_tensor(value)
            check_log(f"{self._name} of model {self._model.name}", tensor)
            return _Log(None, 0, tf.TensorSpec(tensor.shape, tensor.dtype))

        return tf.nest.map_structure(described, found)

    def _or_zero(self, value: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        """Return zero on a replica that has no examples."""
        return value if self._replicas == 1 else or_zero(value, size)

    def _state(self, replica: ReplicaTrace) -> list[tf.Tensor]:
        """Return what the step has written to variables that are not of metrics."""
        found = self._writes.found(replica.scope, self._metrics.variables, rows_of(replica.data))
        self._written = [variable for variable, _ in found]
        return self._writes.to_share(found, replica.seeds)


def _float64(value: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(value), tf.float64)


def _is_built(model: Any) -> bool:
    are_built = all(layer.built for layer in layers_of(model) if layer is not model)
    return are_built and compiled_metrics_are_built(model)
