"""Run one step of a Keras 3 model: a replica's part of it is a pure function of variables and data.

`keras.StatelessScope` catches what the forward pass and the metrics would write. So no variable is updated by
racing reads and writes (Keras 3's `assign_add` is a read, an add and a write), and tfdist combines the
results of the replicas before any variable changes.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import traced_by_chief
from tfdist.training.keras.kept_traces import kinds
from tfdist.training.keras.losses_and_metrics.loss_divisors import losses_of_one_process
from tfdist.training.keras.losses_and_metrics.metric_state import are_sums
from tfdist.training.keras.optimizers.optimizer import Update, counter_of_all_steps, loss_scale
from tfdist.training.keras.refuse_assignments import assignments_refused
from tfdist.training.keras.rng import GraphSeed, Randomness
from tfdist.training.keras.steps.keras3_replica import Keras3Replica, Traced
from tfdist.training.keras.steps.step_base import MetricStep, traced_in_place, value_of
from tfdist.training.parameter_servers.variable_cache import PsCache
from tfdist.training.replicas.call_synchronized_layers import replicas_called_together
from tfdist.training.replicas.reduction import without_fixed_size
from tfdist.training.runners.multi_step import Totals


class Keras3Step(MetricStep):
    """A step that trains or tests a Keras 3 model on one batch, and returns what to add to the metrics."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, randomness: Randomness) -> None:
        super().__init__(model, strategy)
        # Which variables of metrics are sums, by `training` and the kinds of the batch.
        self._adds: dict[tuple[bool, str], list[bool]] = {}
        self._randomness = randomness
        self._replica = Keras3Replica(model, strategy, randomness, self._metrics)

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
            batch = without_fixed_size(batch, self._strategy.num_replicas_in_sync)
            before = self._metrics.placeholders()
            with self._replica.scope(self._randomness.snapshot(), before) as scope:
                self._replica.forward(batch, training=key[0])
                self._adds[key] = are_sums(scope, before)
                self._metrics.warn_of_batches(scope, before, is_weighed=self._replica.batch_means.are_noted)

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
        replica = self._replica
        replica.follow_trainable()
        scale, traced = loss_scale(self._model.optimizer), Traced()
        train_on_part = functools.partial(replica.train, traced=traced, seed=GraphSeed(self._strategy))
        with self._tracing():
            if replica.ps_variables is not None:
                replica.ps_variables.settle(
                    lambda: self._strategy.run(replica.gradients_alone, args=(batch, scale))
                )
            gradients, *parts = self._strategy.run(train_on_part, args=(batch, scale, totals))
        # Replicas in step have sent their gradients to the servers already, to add them up.
        fetched = None if self._strategy.num_replicas_in_sync > 1 else traced.fetched
        state, sums = map(self._local, parts)
        weights = {id(variable) for variable in replica.trainable}
        written = list(zip(traced.written, state, strict=True))
        self._write(pair for pair in written if id(pair[0]) in weights)  # which the gradients then change
        deliver = None if fetched is None else fetched.deliver
        optimizer, variables = self._model.optimizer, replica.trainable
        if variables:
            update = Update(self._strategy, optimizer, variables, deliver=deliver, applied=self._applied)
            update.apply(gradients, scale)
        elif self._applied is not None:
            self._applied.note_step()
        if fetched is not None:
            fetched.end()
        self._write(pair for pair in written if id(pair[0]) not in weights)
        return self._after_batch(totals, sums)

    def _local(self, values: Iterable[Any]) -> list[tf.Tensor]:
        """Return what the first replica of this process has of values that are the same on all replicas."""
        return [self._strategy.experimental_local_results(value)[0] for value in values]

    def _write(self, values: Iterable[tuple[Any, tf.Tensor]]) -> None:
        for variable, value in values:
            self._randomness.write(variable, value)

    def test(self, batch: Any, totals: Totals, came: Sequence[tuple[Any, tf.Tensor]] = ()) -> Totals:
        """Test on a batch, each replica on its part; return the totals after it.

        `came` are variables with values that were fetched before.
        """
        traced, seed = Traced(), GraphSeed(self._strategy)
        test_on_part = functools.partial(self._replica.test, came=came, traced=traced, seed=seed)
        with self._tracing():
            parts = self._strategy.run(test_on_part, args=(batch, totals))
        state, sums = map(self._local, parts)
        self.writes_in_tests = bool(traced.written)
        self._write(zip(traced.written, state, strict=True))
        return self._after_batch(totals, sums)

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        replicas = self._strategy.num_replicas_in_sync
        with (
            losses_of_one_process(self._keras),
            traced_in_place(self._model, self._randomness),
            self._replica.batch_means.noted() if replicas > 1 else contextlib.nullcontext(),
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
            zeros, traced, replica = self._metrics.zeros(), Traced(), self._replica

            def tested(batch: Any) -> tuple[Any, list[Any]]:
                sums = self._strategy.run(
                    lambda data: replica.tested(data, zeros, traced).sums, args=(batch,)
                )
                return sums, traced.written

            return PsCache.for_step(variables, tested, spec)
