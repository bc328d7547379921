"""Compute one replica's part of a step of a Keras 3 model, as a pure function of variables and data."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import call_model
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.strategies.gradient_arithmetic import shaped, with_values
from tfdist.strategies.strategy_classes import ps_transfer_of
from tfdist.training.keras.layer_writes import LayerWrites
from tfdist.training.keras.losses_and_metrics.batch_counts_and_losses import (
    NOTHING_COUNTED,
    StepSums,
    SumsLayout,
)
from tfdist.training.keras.losses_and_metrics.compute_loss import Losses, ModelLosses
from tfdist.training.keras.losses_and_metrics.loss_checks import LossWarning
from tfdist.training.keras.losses_and_metrics.metric_state import MetricState
from tfdist.training.keras.losses_and_metrics.scalar_batch_metrics import BatchMeans
from tfdist.training.keras.model_facts import has_own, is_alone, uses_xla
from tfdist.training.keras.optimizers.optimizer import adds_rows_up
from tfdist.training.keras.rng import GraphSeed, Randomness
from tfdist.training.keras.stateless_scopes import RecordingScope, recording_scope
from tfdist.training.keras.steps.bias_gradients import biases_apart
from tfdist.training.keras.steps.step_base import compiled
from tfdist.training.parameter_servers.fetch_and_send import FetchedVariables, PsVariables
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of
from tfdist.training.replicas.call_synchronized_layers import has_synchronized_layers, weighed
from tfdist.training.replicas.empty_replicas import computed_or_zero, if_any, with_an_example
from tfdist.training.replicas.reduction import (
    OfLoss,
    Shared,
    batch_size,
    rows_of,
    shared_mean,
    shares_of,
    unpacked,
    without_fixed_size,
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
from tfdist.training.replicas.split_into_terms import OfSum
from tfdist.training.runners.multi_step import Totals
from tfdist.training.runners.replica_stats import ReplicaStats

_LOST_LOGS = (
    "model %s: the logs leave out what compute_metrics adds: %s. Override get_metrics_result to add it, which"
    " sees the metrics of all examples, or write a metric"
)
_log = logging.getLogger("tfdist")


class Part(NamedTuple):
    """The results of one replica; `gradients`, `weights` and `summed` are those of each part of the loss.

    `summed` are the sums of which divisors are computed, None for the others.
    """

    gradients: list[list[Any]]
    weights: list[tf.Tensor | None]
    summed: list[tf.Tensor | None]
    state: list[tf.Tensor]
    sums: list[tf.Tensor]


@dataclass
class Traced:
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


class Keras3Replica:
    """A replica of a Keras 3 model; all its methods that compute are called in replica context.

    Attributes:
        trainable: The variables that are trained, in their parts.
        ps_variables: The variables that the transport to parameter servers carries, None without one.
        batch_means: The metrics that average one number for each batch.
    """

    def __init__(
        self, model: Any, strategy: tf.distribute.Strategy, randomness: Randomness, metrics: MetricState
    ) -> None:
        self._keras, self._model, self._strategy = keras_of(model), model, strategy
        self._metrics, self._randomness = metrics, randomness
        self._stats = ReplicaStats(strategy)
        self._has_lost_logs = False  # and has said so
        self._losses = ModelLosses(model, strategy.num_replicas_in_sync, LossWarning())
        self.batch_means = BatchMeans(self._keras, without=self._losses.trackers)
        self._sums = StepSums(model, metrics, self._losses, self.batch_means)
        self._is_synchronized = strategy.num_replicas_in_sync > 1 and has_synchronized_layers(model)
        self._layer_writes = LayerWrites(model, strategy, randomness)
        self.trainable = parts_of(model.trainable_variables)
        self.ps_variables = self._variables_on_ps()

    def _variables_on_ps(self) -> PsVariables | None:
        """Return the variables that the transport to parameter servers carries, None without one."""
        ps_transfer = ps_transfer_of(self._strategy)
        # Outside graphs the chief runs one operation at a time, and a transfer needs two at the same time.
        if ps_transfer is None or self._model.run_eagerly:
            return None
        return PsVariables(ps_transfer, self._model.trainable_variables)

    def follow_trainable(self) -> None:
        """Train what is trainable when the step is traced, as Keras does: callbacks may have changed it."""
        trainable = parts_of(self._model.trainable_variables)
        if list(map(id, trainable)) != list(map(id, self.trainable)):
            self.trainable, self.ps_variables = trainable, self._variables_on_ps()

    def train(
        self, data: Any, scale: tf.Tensor | None, totals: Totals, *, traced: Traced, seed: GraphSeed
    ) -> tuple[list[Any], list[tf.Tensor], list[tf.Tensor]]:
        """Return the gradients, what layers write, and what the batch adds to the metrics and statistics."""
        # Each replica has its own: the next one replaces it in `traced` where replicas wait for each other.
        fetched = traced.fetched = None if self.ps_variables is None else self.ps_variables.begin()
        shared, counted = self._shared(
            lambda batch: self._gradients(batch, scale, totals.metrics, traced),
            data,
            totals,
            traced,
            seed,
            fetched,
        )
        gradients = with_rows_summed(shared.gradients, traced.unique)
        if any(traced.shared_rows):
            # In a synchronized layer, a replica without examples computes, too.
            replicas = self._strategy.num_replicas_in_sync if self._is_synchronized else shared.replicas
            gradients = with_replicas_added_up(gradients, traced.shared_rows, replicas)
        return shaped(gradients, self.trainable), shared.state, counted

    def gradients_alone(self, data: Any, scale: tf.Tensor | None) -> list[Any]:
        """Return the gradients of this replica's part of a batch, which no other one adds to."""
        part = self._gradients(data, scale, self._metrics.zeros(), Traced())
        ones = [tf.ones([], tf.float64)] * len(part.gradients)
        return [summed(of_variable, ones) for of_variable in zip(*part.gradients, strict=True)]

    def test(
        self,
        data: Any,
        totals: Totals,
        *,
        came: Sequence[tuple[Any, tf.Tensor]],
        traced: Traced,
        seed: GraphSeed,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return what layers write, and what the batch adds to the metrics and statistics.

        `came` are variables with values that were fetched before.
        """
        shared, counted = self._shared(
            lambda batch: self.tested(batch, totals.metrics, traced, came), data, totals, traced, seed
        )
        return shared.state, counted

    def _shared(
        self,
        compute: Callable[[Any], Part],
        data: Any,
        totals: Totals,
        traced: Traced,
        seed: GraphSeed,
        fetched: FetchedVariables | None = None,
    ) -> tuple[Shared, list[tf.Tensor]]:
        """Return what all replicas compute, and what the batch adds to the metrics, with the statistics."""
        data = without_fixed_size(data, self._strategy.num_replicas_in_sync)
        size = batch_size(unpacked(data)[0])
        begun, data = self._stats.begun(data)
        with seed.of_this_replica():
            part = self._computed(compiled(self._model, self._strategy, compute), data, size)
        loss = self._sums.loss_in(part.sums, traced.layout)
        shared = shared_mean(
            self._of_losses(part, traced.layout),
            part.state,
            [
                *self._sums.to_add_up(part.sums, totals.metrics, size),
                self._stats.ended(begun, part, loss, size),
            ],
            size=size,
            add_up=None if fetched is None else fetched.add_up,
        )
        *sums, stats = shared.sums
        return shared, [*self._sums.of_batch(sums, shared.weights, shared.size, traced.layout), stats]

    def _of_losses(self, part: Part, layout: SumsLayout) -> list[OfLoss]:
        """Return the gradients of each part of the loss, with its divisor."""
        of_parts = zip(part.gradients, part.weights, part.summed, layout.wholes, strict=True)
        return [
            OfLoss(gradients, weight, self._is_synchronized, None if whole is None else OfSum(number, whole))
            for gradients, weight, number, whole in of_parts
        ]

    def _computed(self, compute: Callable[[Any], Part], data: Any, size: tf.Tensor) -> Part:
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

        def slices(part: Part) -> list[tf.Tensor]:
            return [tensor for of_loss in part.gradients for tensor in slices_of(of_loss)]

        return if_any(lambda: compute(data), size, slices)  # type: ignore[no-any-return]

    def _gradients(
        self, data: Any, scale: tf.Tensor | None, counted: Sequence[tf.Tensor], traced: Traced
    ) -> Part:
        fetched, seeds = traced.fetched, self._randomness.snapshot()
        metrics = self._metrics.before_batch(counted)
        with contextlib.ExitStack() as stack:
            tape = stack.enter_context(tf.GradientTape(persistent=True))
            came = [] if fetched is None else fetched.watched(tape)
            scope = stack.enter_context(self.scope(seeds, metrics, came))
            stack.enter_context(self._randomness.unseeded_from_here())
            losses, layout = self.forward(data, training=True)
            scaled = [weighed(part.loss, scale) for part in losses.parts]
            if self._is_synchronized:
                shares = shares_of(losses.weights, [part.of_sum for part in losses.parts])
                scaled = list(map(weighed, scaled, shares))
        found = self._written(scope, traced, data)
        new = {id(variable): value for variable, value in found}
        # A layer that writes a weight computes with the new value, whose gradient one process applies to it.
        sources = [
            new.get(id(variable), variable.value if fetched is None else fetched.source(variable))
            for variable in self.trainable
        ]
        gradients = []
        for loss in scaled:
            # A function that is computed again for its gradients draws and writes what it did before.
            with self.scope(seeds, metrics, came), self._randomness.unseeded_from_here():
                gradients.append(self._gradients_of(tape, loss, sources))
        traced.unique, traced.shared_rows = self._kinds_of_rows(gradients)
        gradients = addends(gradients)
        state = self._layer_writes.to_share(found, seeds)
        traced.layout = layout
        sums = self._sums.of_replica(scope, losses, layout, batch_size(unpacked(data)[0]))
        return Part(gradients, losses.weights, losses.sums, state, sums)

    def _written(self, scope: RecordingScope, traced: Traced, data: Any) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that layers have written, with their values; note the variables."""
        found = self._layer_writes.found(scope, self._metrics.variables, rows_of(unpacked(data)[0]))
        traced.written = [variable for variable, _ in found]
        return found

    def _gradients_of(self, tape: tf.GradientTape, loss: tf.Tensor, weights: list[Any]) -> list[Any]:
        gradients = shaped(biases_apart(tape.gradient(loss, weights)), self.trainable)
        if self._strategy.num_replicas_in_sync == 1:
            return gradients
        # XLA returns tensors of wrong sizes, or crashes, where several of them have sizes that it computes.
        are_added_up = adds_rows_up(self._model.optimizer) and not uses_xla(self._model, self._strategy)
        return slices_of_one_process(gradients, self.trainable, are_added_up=are_added_up)

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

    def tested(
        self,
        data: Any,
        counted: Sequence[tf.Tensor],
        traced: Traced,
        came: Sequence[tuple[Any, tf.Tensor]] = (),
    ) -> Part:
        """Return the results of this replica's part of a batch of a test, without those of others."""
        seeds = self._randomness.snapshot()
        metrics = self._metrics.before_batch(counted)
        with self.scope(seeds, metrics, came) as scope, self._randomness.unseeded_from_here():
            losses, layout = self.forward(data, training=False)
        state = self._layer_writes.to_share(self._written(scope, traced, data), seeds)
        gradients: list[list[Any]] = [[] for _ in losses.parts]
        traced.layout = layout
        sums = self._sums.of_replica(scope, losses, layout, batch_size(unpacked(data)[0]))
        return Part(gradients, losses.weights, losses.sums, state, sums)

    def forward(self, data: Any, *, training: bool) -> tuple[Losses, SumsLayout]:
        """Return the losses of a replica, and what the values that it adds up stand for."""
        model = self._model
        x, y, sample_weight = unpacked(data)
        self.batch_means.begin(rows_of(x))
        y_pred = call_model(model, x, training=training)
        losses = self._losses.compute(x, y, y_pred, sample_weight, training=training)
        self._check_logs(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))
        wholes = [None if part.of_sum is None else part.of_sum.whole for part in losses.parts]
        return losses, SumsLayout(losses.places, self.batch_means.numbers, wholes)

    def _check_logs(self, logs: Any) -> None:
        """Warn once of what an overridden compute_metrics adds to the logs, which know the metrics only."""
        if self._has_lost_logs or not has_own(self._model, "compute_metrics"):
            return
        lost = [name for name in logs or {} if name not in self._model.get_metrics_result()]
        self._has_lost_logs = bool(lost)
        if lost:
            _log.warning(_LOST_LOGS, self._model.name, ", ".join(lost))

    def scope(
        self,
        seeds: list[tuple[Any, tf.Tensor]],
        metrics: list[tuple[Any, tf.Tensor]],
        came: Sequence[tuple[Any, tf.Tensor]] = (),
    ) -> RecordingScope:
        """Return a scope with these values, which catches what the forward pass and the metrics write."""
        return recording_scope(
            self._keras,
            [*metrics, *seeds, *came],
            is_alone=is_alone(self._strategy) and not is_asynchronous(self._strategy),
            uses_xla=uses_xla(self._model, self._strategy),
        )
