"""Run one step of a Keras 3 model: a replica's part of it is a pure function of variables and data.

`keras.StatelessScope` catches what the forward pass and the metrics would write. So no variable is updated by
racing reads and writes (Keras 3's `assign_add` is a read, an add and a write), and tfdist combines the
results of the replicas before any variable changes.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.keras_private import call_model
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import traced_by_chief
from tfdist.strategies.scale_gradients import shaped, with_values
from tfdist.strategies.strategy_classes import ps_transfer_of
from tfdist.training.keras.kept_traces import kinds
from tfdist.training.keras.layer_writes import LayerWrites, assignments_refused
from tfdist.training.keras.losses_and_metrics.loss_divisors import losses_of_one_process
from tfdist.training.keras.losses_and_metrics.metric_state import are_sums
from tfdist.training.keras.losses_and_metrics.model_losses import Losses, ModelLosses
from tfdist.training.keras.losses_and_metrics.scalar_batch_metrics import BatchMeans
from tfdist.training.keras.losses_and_metrics.step_sums import NOTHING_COUNTED, StepSums, SumsLayout
from tfdist.training.keras.model_checks import has_own, uses_xla
from tfdist.training.keras.optimizers.optimizer import Update, adds_rows_up, counter_of_all_steps, loss_scale
from tfdist.training.keras.rng import GraphSeed, Randomness
from tfdist.training.keras.stateless_scopes import RecordingScope, recording_scope
from tfdist.training.keras.steps.bias_gradients import biases_apart
from tfdist.training.keras.steps.step_base import MetricStep, traced_in_place, value_of
from tfdist.training.parameter_servers.fetch_and_send import FetchedVariables, PsVariables
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of
from tfdist.training.parameter_servers.variable_cache import PsCache
from tfdist.training.replicas.call_synchronized_layers import (
    has_synchronized_layers,
    replicas_called_together,
    weighed,
)
from tfdist.training.replicas.empty_replicas import computed_or_zero, if_any, with_an_example
from tfdist.training.replicas.reduction import (
    OfLoss,
    Shared,
    batch_size,
    rows_of,
    shared_mean,
    shares_of,
    unpacked,
)
from tfdist.training.replicas.sparse_gradients import (
    addends,
    have_shared_rows,
    have_unique_rows,
    slices_of,
    slices_of_one_process,
    summed,
    with_replicas_added_up,
    with_rows_summed,
)
from tfdist.training.runners.multi_step import Totals

_LOST_LOGS = (
    "model %s: the logs leave out what compute_metrics adds: %s. Override get_metrics_result to add it, which"
    " sees the metrics of all examples, or write a metric"
)
_log = logging.getLogger("tfdist")


class _Part(NamedTuple):
    """The results of one replica; `gradients` and `weights` are those of each part of the loss."""

    gradients: list[list[Any]]
    weights: list[tf.Tensor | None]
    state: list[tf.Tensor]
    sums: list[tf.Tensor]


@dataclass
class _Traced:
    """The results of tracing a training step, the same on all replicas.

    Attributes:
        fetched: The variables that are fetched from parameter servers for the step.
        written: The variables besides the weights that the step writes to.
        unique: Which gradients have each row once on each replica, as in one process.
        shared_rows: Which gradients have the same rows on each replica.
        layout: What the values that the replicas add up stand for.
    """

    fetched: FetchedVariables | None = None
    written: list[Any] = field(default_factory=list)
    unique: list[bool] = field(default_factory=list)
    shared_rows: list[bool] = field(default_factory=list)
    layout: SumsLayout = NOTHING_COUNTED


class Keras3Step(MetricStep):
    """A step that trains or tests a Keras 3 model on one batch, and returns what to add to the metrics."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, randomness: Randomness) -> None:
        super().__init__(model, strategy)
        # Which variables of metrics are sums, by `training` and the kinds of the batch.
        self._adds: dict[tuple[bool, str], list[bool]] = {}
        self._has_lost_logs = False  # and has said so
        self._losses = ModelLosses(model, strategy.num_replicas_in_sync, self._loss_warning)
        self._batch_means = BatchMeans(self._keras, without=self._losses.trackers)
        self._sums = StepSums(model, self._metrics, self._losses, self._batch_means)
        self._is_synchronized = strategy.num_replicas_in_sync > 1 and has_synchronized_layers(model)
        self._randomness = randomness
        self._layer_writes = LayerWrites(model, strategy, randomness)
        self._trainable = parts_of(model.trainable_variables)
        self._ps_variables = self._variables_on_ps()

    def _variables_on_ps(self) -> PsVariables | None:
        """Return the variables that the transport to parameter servers carries, None without one."""
        ps_transfer = ps_transfer_of(self._strategy)
        # Outside graphs the chief runs one operation at a time, and a transfer needs two at the same time.
        if ps_transfer is None or self._model.run_eagerly:
            return None
        return PsVariables(ps_transfer, self._model.trainable_variables)

    def _follow_trainable(self) -> None:
        """Train what is trainable when the step is traced, as Keras does: callbacks may have changed it."""
        trainable = parts_of(self._model.trainable_variables)
        if list(map(id, trainable)) != list(map(id, self._trainable)):
            self._trainable, self._ps_variables = trainable, self._variables_on_ps()

    @property
    def unseeded(self) -> list[Any]:
        """Return the states of the random generators that belong to no layer."""
        return self._randomness.unseeded

    def check_metrics(self, phases: Sequence[tuple[bool, Any]]) -> bool:
        """Check which metrics are sums, in a graph that is thrown away, once for each kind of phase.

        Return whether the states of metrics are merged in another way than before.

        Raises:
            ConfigError: Several replicas cannot merge the state of a metric.
        """
        keys = {(training, kinds(spec)): spec for training, spec in phases}
        unchecked = {key: spec for key, spec in keys.items() if key not in self._adds}
        if not self._metrics.needs_check or not unchecked:
            return False
        is_first = not self._adds

        def forward(batch: Any, *, key: tuple[bool, str]) -> None:
            before = self._metrics.placeholders()
            with self._scope(self._randomness.snapshot(), before) as scope:
                self._forward(batch, training=key[0])
                self._adds[key] = are_sums(scope, before)
                self._metrics.warn_of_batches(scope, before, is_weighed=self._batch_means.are_noted)

        with self._tracing(), traced_by_chief(self._strategy):
            for key, spec in unchecked.items():
                run = functools.partial(forward, key=key)
                tf.function(
                    lambda batch, run=run: self._strategy.run(run, args=(batch,)), autograph=False
                ).get_concrete_function(spec)
        is_changed = self._metrics.check([all(flags) for flags in zip(*self._adds.values(), strict=True)])
        return is_changed and not is_first

    def _step_counters(self) -> list[Any]:
        counter = counter_of_all_steps(self._model.optimizer)
        return [] if counter is None else [counter]

    def results(self, totals: Totals) -> dict[str, Any]:
        """Return the metrics' results."""
        with self._keras.StatelessScope(self._metrics.values(totals.metrics)):
            # A result may be a variable, which has this value only within the scope.
            return tf.nest.map_structure(value_of, self._model.get_metrics_result())  # type: ignore[no-any-return]

    def train(self, batch: Any, totals: Totals) -> Totals:
        """Train on a batch, each replica on its part; return the totals after it."""
        self._follow_trainable()
        scale, traced = loss_scale(self._model.optimizer), _Traced()
        train_on_part = functools.partial(self._train_on_part, traced=traced, seed=GraphSeed(self._strategy))
        with self._tracing():
            if self._ps_variables is not None:
                self._ps_variables.settle(
                    lambda: self._strategy.run(self._gradients_alone, args=(batch, scale))
                )
            gradients, *parts = self._strategy.run(train_on_part, args=(batch, scale, totals))
        # Replicas in step have sent their gradients to the servers already, to add them up.
        fetched = None if self._strategy.num_replicas_in_sync > 1 else traced.fetched
        state, sums = (
            [self._strategy.experimental_local_results(value)[0] for value in part] for part in parts
        )
        weights = {id(variable) for variable in self._trainable}
        written = list(zip(traced.written, state, strict=True))
        self._write(pair for pair in written if id(pair[0]) in weights)  # which the gradients then change
        deliver = None if fetched is None else fetched.deliver
        optimizer, variables = self._model.optimizer, self._trainable
        if variables:
            update = Update(self._strategy, optimizer, variables, deliver=deliver, applied=self._applied)
            update.apply(gradients, scale)
        elif self._applied is not None:
            self._applied.note_step()
        if fetched is not None:
            fetched.end()
        self._write(pair for pair in written if id(pair[0]) not in weights)
        return self._after_batch(totals, sums)

    def _write(self, values: Iterable[tuple[Any, tf.Tensor]]) -> None:
        for variable, value in values:
            self._randomness.write(variable, value)

    def test(self, batch: Any, totals: Totals, came: Sequence[tuple[Any, tf.Tensor]] = ()) -> Totals:
        """Test on a batch, each replica on its part; return the totals after it.

        `came` are variables with values that were fetched before.
        """
        traced = _Traced()
        seed = GraphSeed(self._strategy)
        test_on_part = functools.partial(self._test_on_part, came=came, traced=traced, seed=seed)
        with self._tracing():
            parts = self._strategy.run(test_on_part, args=(batch, totals))
        state, sums = (
            [self._strategy.experimental_local_results(value)[0] for value in part] for part in parts
        )
        self.writes_in_tests = bool(traced.written)
        self._write(list(zip(traced.written, state, strict=True)))
        return self._after_batch(totals, sums)

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        replicas = self._strategy.num_replicas_in_sync
        with (
            losses_of_one_process(self._keras),
            traced_in_place(self._model, self._randomness),
            self._batch_means.noted() if replicas > 1 else contextlib.nullcontext(),
            assignments_refused(self._model),
            replicas_called_together(self._keras, self._model, replicas),
        ):
            yield

    def _after_batch(self, totals: Totals, sums: Sequence[tf.Tensor]) -> Totals:
        *counted, stats = sums
        return Totals(self._metrics.after_batch(totals.metrics, counted), totals.stats + stats)

    def ps_cache(self, spec: Any) -> PsCache | None:
        """Return the cache of what an asynchronous worker fetches once for many tests; None in other cases.

        With replicas in step, the chief runs the graph that loops over the batches, and all values fetched
        for the loop would go through the chief.
        """
        if not is_asynchronous(self._strategy):
            return None
        variables = [variable for variable in self._model.variables if not self._randomness.owns(variable)]
        with losses_of_one_process(self._keras), traced_in_place(self._model, self._randomness):
            zeros = self._metrics.zeros()
            traced = _Traced()

            def tested(batch: Any) -> tuple[Any, list[Any]]:
                sums = self._strategy.run(lambda data: self._tested(data, zeros, traced).sums, args=(batch,))
                return sums, traced.written

            return PsCache.for_step(variables, tested, spec)

    # -- in replica context --

    def _train_on_part(
        self, data: Any, scale: tf.Tensor | None, totals: Totals, *, traced: _Traced, seed: GraphSeed
    ) -> tuple[list[Any], list[tf.Tensor], list[tf.Tensor]]:
        traced.fetched = None if self._ps_variables is None else self._ps_variables.begin()
        shared = self._shared(
            lambda batch: self._gradients(batch, scale, totals.metrics, traced),
            data,
            totals.metrics,
            traced,
            seed,
            traced.fetched,
        )
        gradients = with_rows_summed(shared.gradients, traced.unique)
        if any(traced.shared_rows):
            # In a synchronized layer, a replica without examples computes, too.
            replicas = self._strategy.num_replicas_in_sync if self._is_synchronized else shared.replicas
            gradients = with_replicas_added_up(gradients, traced.shared_rows, replicas)
        return shaped(gradients, self._trainable), shared.state, self._added_to_metrics(shared, traced)

    def _gradients_alone(self, data: Any, scale: tf.Tensor | None) -> list[Any]:
        part = self._gradients(data, scale, self._metrics.zeros(), _Traced())
        ones = [tf.ones([], tf.float64)] * len(part.gradients)
        return [summed(of_variable, ones) for of_variable in zip(*part.gradients, strict=True)]

    def _test_on_part(
        self,
        data: Any,
        totals: Totals,
        *,
        came: Sequence[tuple[Any, tf.Tensor]],
        traced: _Traced,
        seed: GraphSeed,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        shared = self._shared(
            lambda batch: self._tested(batch, totals.metrics, traced, came),
            data,
            totals.metrics,
            traced,
            seed,
        )
        return shared.state, self._added_to_metrics(shared, traced)

    def _shared(
        self,
        compute: Callable[[Any], _Part],
        data: Any,
        counted: Sequence[tf.Tensor],
        traced: _Traced,
        seed: GraphSeed,
        fetched: FetchedVariables | None = None,
    ) -> Shared:
        x, _, _ = unpacked(data)
        begun, data = self._replica_stats.begun(data)
        with seed.of_this_replica():
            part = self._computed(self._compiled(compute), data, batch_size(x))
        loss = self._sums.loss_in(part.sums, traced.layout)
        return shared_mean(
            [
                OfLoss(*pair, are_shared=self._is_synchronized)
                for pair in zip(part.gradients, part.weights, strict=True)
            ],
            part.state,
            [
                *self._sums.to_add_up(part.sums, counted, batch_size(x)),
                self._replica_stats.ended(begun, part, loss, batch_size(x)),
            ],
            size=batch_size(x),
            add_up=None if fetched is None else fetched.add_up,
        )

    def _computed(self, compute: Callable[[Any], _Part], data: Any, size: tf.Tensor) -> _Part:
        if self._strategy.num_replicas_in_sync == 1:
            return compute(data)
        # Eagerly, no other branch shows the shapes.
        if tf.executing_eagerly() and size == 0 and not self._is_synchronized:
            part = compute(with_an_example(data, size))
            return tf.nest.map_structure(  # type: ignore[no-any-return]
                lambda value: with_values(value, tf.zeros_like), part
            )
        if self._is_synchronized:
            return computed_or_zero(lambda: compute(data), size)  # type: ignore[no-any-return]

        def slices(part: _Part) -> list[tf.Tensor]:
            return [tensor for of_loss in part.gradients for tensor in slices_of(of_loss)]

        return if_any(lambda: compute(data), size, slices)  # type: ignore[no-any-return]

    def _gradients(
        self, data: Any, scale: tf.Tensor | None, counted: Sequence[tf.Tensor], traced: _Traced
    ) -> _Part:
        fetched, seeds = traced.fetched, self._randomness.snapshot()
        metrics = self._metrics.before_batch(counted)
        with (
            tf.GradientTape(persistent=True) as tape,
            self._scope(seeds, metrics, [] if fetched is None else fetched.watched(tape)) as scope,
            self._randomness.unseeded_from_here(),
        ):
            losses, layout = self._forward(data, training=True)
            scaled = [weighed(part.loss, scale) for part in losses.parts]
            if self._is_synchronized:
                scaled = list(map(weighed, scaled, shares_of([part.weight for part in losses.parts])))
        found = self._written(scope, traced, data)
        new = {id(variable): value for variable, value in found}
        # A layer that writes a weight computes with the new value, whose gradient one process applies to it.
        sources = [
            new.get(id(variable), variable.value if fetched is None else fetched.source(variable))
            for variable in self._trainable
        ]
        gradients = [self._gradients_of(tape, loss, sources) for loss in scaled]
        traced.unique, traced.shared_rows = self._kinds_of_rows(gradients)
        gradients = addends(gradients)
        state = self._layer_writes.to_share(found, seeds)
        traced.layout = layout
        sums = self._sums.of_replica(scope, losses, layout, batch_size(unpacked(data)[0]))
        return _Part(gradients, losses.weights, state, sums)

    def _written(self, scope: RecordingScope, traced: _Traced, data: Any) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that layers have written, with their values; note the variables."""
        found = self._layer_writes.found(scope, self._metrics.variables, rows_of(unpacked(data)[0]))
        traced.written = [variable for variable, _ in found]
        return found

    def _gradients_of(self, tape: tf.GradientTape, loss: tf.Tensor, weights: list[Any]) -> list[Any]:
        gradients = shaped(biases_apart(tape.gradient(loss, weights)), self._trainable)
        if self._strategy.num_replicas_in_sync == 1:
            return gradients
        # XLA returns tensors of wrong sizes, or crashes, where several of them have sizes that it computes.
        are_added_up = adds_rows_up(self._model.optimizer) and not uses_xla(self._model, self._strategy)
        return slices_of_one_process(gradients, self._trainable, are_added_up=are_added_up)

    def _kinds_of_rows(self, gradients: list[list[Any]]) -> tuple[list[bool], list[bool]]:
        """Return for each weight whether a replica has each row once, and whether all have the same rows."""
        if self._strategy.num_replicas_in_sync == 1:
            return [False] * len(gradients[0]), [False] * len(gradients[0])
        of_weights = [
            [gradient for gradient in of_losses if gradient is not None]
            for of_losses in zip(*gradients, strict=True)
        ]
        unique = [any(have_unique_rows(known)) for known in of_weights]
        shared = [bool(known) and all(have_shared_rows(known)) for known in of_weights]
        return unique, shared

    def _tested(
        self,
        data: Any,
        counted: Sequence[tf.Tensor],
        traced: _Traced,
        came: Sequence[tuple[Any, tf.Tensor]] = (),
    ) -> _Part:
        seeds = self._randomness.snapshot()
        metrics = self._metrics.before_batch(counted)
        with self._scope(seeds, metrics, came) as scope, self._randomness.unseeded_from_here():
            losses, layout = self._forward(data, training=False)
        state = self._layer_writes.to_share(self._written(scope, traced, data), seeds)
        gradients: list[list[Any]] = [[] for _ in losses.parts]
        traced.layout = layout
        sums = self._sums.of_replica(scope, losses, layout, batch_size(unpacked(data)[0]))
        return _Part(gradients, losses.weights, state, sums)

    def _forward(self, data: Any, *, training: bool) -> tuple[Losses, SumsLayout]:
        """Return the losses of a replica, and what the values that it adds up stand for."""
        model = self._model
        x, y, sample_weight = unpacked(data)
        y_pred = call_model(model, x, training=training)
        losses = self._losses.compute(x, y, y_pred, sample_weight, training=training)
        self._batch_means.begin(rows_of(x))
        self._check_logs(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))
        return losses, SumsLayout(losses.places, self._batch_means.numbers)

    def _check_logs(self, logs: Any) -> None:
        """Warn once of what an overridden compute_metrics adds to the logs, which know the metrics only."""
        if self._has_lost_logs or not has_own(self._model, "compute_metrics"):
            return
        lost = [name for name in logs or {} if name not in self._model.get_metrics_result()]
        self._has_lost_logs = bool(lost)
        if lost:
            _log.warning(_LOST_LOGS, self._model.name, ", ".join(lost))

    def _scope(
        self,
        seeds: list[tuple[Any, tf.Tensor]],
        metrics: list[tuple[Any, tf.Tensor]],
        came: Sequence[tuple[Any, tf.Tensor]] = (),
    ) -> RecordingScope:
        # Regularizers get the weights from the scope only.
        here = {id(variable) for variable, _ in came}
        penalized = [
            variable
            for variable in self._model.trainable_variables
            if variable.regularizer is not None and id(variable) not in here
        ]
        weights = [(variable, tf.convert_to_tensor(variable.value)) for variable in penalized]
        return recording_scope(self._keras, [*metrics, *weights, *seeds, *came])

    def _added_to_metrics(self, shared: Shared, traced: _Traced) -> list[tf.Tensor]:
        """Return what a batch adds to the metrics, and the statistics of its step."""
        *sums, stats = shared.sums
        return [*self._sums.of_batch(sums, shared.weights, shared.size, traced.layout), stats]
