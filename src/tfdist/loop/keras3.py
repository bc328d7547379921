"""Do one step with a Keras 3 model: a replica's part of it is a pure function of variables and data.

`keras.StatelessScope` catches what the forward pass and the metrics would write. Nothing is therefore updated
by racing reads and writes (Keras 3's `assign_add` is a read, an add and a write), and what the replicas
found is put together before any variable changes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.loop.biases import biases_apart
from tfdist.loop.checks import has_own
from tfdist.loop.crossings import Crossed, Crossings
from tfdist.loop.empty_parts import computed_or_zero, if_any
from tfdist.loop.gauge import Failure, Gauge
from tfdist.loop.generations import keras_of
from tfdist.loop.meeting import meet_in, shaped, unweighed, weighed
from tfdist.loop.randomness import Randomness
from tfdist.loop.shards import parts_of, read_by_rows
from tfdist.loop.sharing import Shared, batch_size, shared_mean, unpacked
from tfdist.loop.standing import Standing, read_whole
from tfdist.loop.updating import Updating
from tfdist.loop.weighing import losses_of_one_process, recorded_divisors, weight_of

__all__ = ["Keras3Step"]


class _Losses(NamedTuple):
    """Hold the losses of a replica: those that a model is compiled with, and those that its layers add."""

    compiled: tf.Tensor
    added: tf.Tensor | None  # apart only where they count by something else
    weight: tf.Tensor | None


class _Part(NamedTuple):
    """Hold what one replica has found."""

    gradients: list[Any]
    added: list[Any]
    weight: tf.Tensor | None
    state: list[tf.Tensor]
    sums: list[tf.Tensor]


class Keras3Step:
    """Train, test and predict on one batch, and say what to add to the metrics."""

    adds_up = True

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        self._keras = keras_of(model)
        self._model = model
        self._strategy = strategy
        self._metrics = list(model.metrics_variables)
        # Keras keeps the mean of each output's loss where there are several.
        trackers = [] if model._compile_loss is None else list(model._compile_loss.metrics)
        self._loss_trackers = [model._loss_tracker, *trackers]
        self._meets = strategy.num_replicas_in_sync > 1 and meet_in(model)
        self._randomness = Randomness(model, strategy)
        self._gauge = Gauge(strategy)
        read_by_rows(model.variables)
        self._state = [*model.non_trainable_variables, *self._randomness.unseeded]
        if model.optimizer is not None:
            self._trainable = parts_of(model.trainable_variables)
            self._updating = Updating(strategy, model.optimizer, self._trainable)
        post = getattr(strategy, "post", None)
        # Outside of graphs the chief runs one operation after the other, and both ends of a line are two.
        has_post = post is not None and not model.run_eagerly
        self._crossings = Crossings(post, model.trainable_variables) if has_post else None
        self._crossed: Crossed | None = None

    @property
    def unseeded(self) -> list[Any]:
        """Give the state of what is drawn from where no layer has a seed."""
        return self._randomness.unseeded

    def no_totals(self) -> tuple[tf.Tensor, ...]:
        """Give the sums that a metric starts from."""
        return *(tf.zeros(each.shape, tf.float64) for each in self._metrics), self._gauge.nothing()

    def results(self, totals: tuple[tf.Tensor, ...]) -> dict[str, Any]:
        """Give the metrics' results from what was added up."""
        mapping = [
            (variable, tf.cast(total, variable.dtype))
            for variable, total in zip(self._metrics, totals[:-1], strict=True)
        ]
        with self._keras.StatelessScope(mapping):
            logs: dict[str, Any] = self._model.get_metrics_result()
        return logs

    def times(self, totals: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Give the seconds and steps of each replica, or of each worker that goes at its own pace."""
        return totals[-1]

    def is_failing(self, totals: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Say, inside a graph, whether a loss was no number."""
        return self._gauge.is_failing(totals[-1])

    def failure(self, totals: tuple[tf.Tensor, ...]) -> Failure | None:
        """Say which replicas' losses were no numbers, if any."""
        return self._gauge.failure(totals[-1])

    def reset(self) -> None:
        """Start the metrics anew."""
        self._model.reset_metrics()

    def train(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """Train on a batch, each replica on its part; give what it adds to the totals."""
        scale = self._updating.loss_scale()
        with losses_of_one_process(self._keras), self._randomness.drawing():
            if self._crossings is not None:
                self._crossings.settle(lambda: self._strategy.run(self._gradients_alone, args=(batch, scale)))
            gradients, *parts = self._strategy.run(self._train_on_part, args=(batch, scale))
        # Replicas in step have brought their gradients to the servers as they added them up.
        crossed = None if self._strategy.num_replicas_in_sync > 1 else self._crossed
        self._updating.apply(gradients, scale, None if crossed is None else crossed.deliver)
        if crossed is not None:
            crossed.end()
        state, sums = (
            [self._strategy.experimental_local_results(each)[0] for each in part] for part in parts
        )
        for variable, value in zip(self._touched, state, strict=True):
            # Workers that go each at their own pace must not set each other's random numbers back.
            is_seed = self._randomness.owns(variable)
            write = variable.value.assign_add if is_seed else variable.value.assign
            write(tf.cast(value, variable.dtype))
        return tuple(sums)

    def test(self, batch: Any, came: Sequence[tuple[Any, tf.Tensor]] = ()) -> tuple[tf.Tensor, ...]:
        """Test on a batch, each replica on its part; give what it adds to the totals.

        Variables may have come before.
        """
        test_on_part = functools.partial(self._test_on_part, came=came)
        with losses_of_one_process(self._keras), self._randomness.drawing():
            sums = self._strategy.run(test_on_part, args=(batch,))
        return tuple(self._strategy.experimental_local_results(each)[0] for each in sums)

    def standing(self, spec: Any) -> Standing | None:
        """Give what a worker at its own pace can fetch from its servers once for many tests, if it is one.

        (Where replicas are in step, the chief runs the graph that loops over the batches, and all that is
        fetched for the loop would go through it.)

        Args:
            spec: Of a batch.
        """
        if not isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            return None
        variables = [each for each in self._model.variables if not self._randomness.owns(each)]
        with losses_of_one_process(self._keras), self._randomness.drawing():
            tested = functools.partial(self._strategy.run, lambda batch: self._tested(batch).sums)
            return Standing(read_whole(variables, lambda batch: tested(args=(batch,)), spec))

    # -- in replica context --

    def _train_on_part(
        self, data: Any, scale: tf.Tensor | None
    ) -> tuple[list[Any], list[tf.Tensor], list[tf.Tensor]]:
        crossed = self._crossed = None if self._crossings is None else self._crossings.begin()
        shared = self._shared(lambda batch: self._gradients(batch, scale, crossed), data, crossed)
        return shaped(shared.gradients, self._trainable), shared.state, self._counted(shared)

    def _gradients_alone(self, data: Any, scale: tf.Tensor | None) -> list[Any]:
        return self._gradients(data, scale).gradients

    def _test_on_part(self, data: Any, came: Sequence[tuple[Any, tf.Tensor]]) -> list[tf.Tensor]:
        return self._counted(self._shared(lambda batch: self._tested(batch, came), data))

    def _shared(self, compute: Callable[[Any], _Part], data: Any, crossed: Crossed | None = None) -> Shared:
        x, _, _ = unpacked(data)
        begun, data = self._gauge.begun(data)
        part = self._computed(lambda: self._compiled(compute)(data), batch_size(x))
        loss = tf.add_n(part.sums[len(self._metrics) :])
        return shared_mean(
            part.gradients,
            part.state,
            [*part.sums, self._gauge.ended(begun, part, loss)],
            size=batch_size(x),
            weight=part.weight,
            added=part.added,
            add_up=None if crossed is None else crossed.add_up,
        )

    def _computed(self, compute: Callable[[], _Part], size: tf.Tensor) -> _Part:
        if self._strategy.num_replicas_in_sync == 1:
            return compute()
        part: _Part = (computed_or_zero if self._meets else if_any)(compute, size)
        return part

    def _compiled(self, compute: Callable[[Any], _Part]) -> Callable[[Any], _Part]:
        """Let XLA compile it where the model asks for it: anew in each replica, which has its own ones."""
        if not self._model.jit_compile:
            return compute
        compiled: Callable[[Any], _Part] = tf.function(compute, jit_compile=True, autograph=False)
        return compiled

    def _gradients(self, data: Any, scale: tf.Tensor | None, crossed: Crossed | None = None) -> _Part:
        seeds = self._randomness.snapshot()
        with (
            tf.GradientTape(persistent=True) as tape,
            self._scope(seeds, [] if crossed is None else crossed.watched(tape)) as scope,
            self._randomness.unseeded_from_here(),
        ):
            losses = self._forward(data, training=True)
            scaled = [weighed(each, scale) for each in (losses.compiled, losses.added)]
            weighs = [losses.weight, batch_size(unpacked(data)[0])] if self._meets else [None, None]
            scaled = [weighed(each, weight) for each, weight in zip(scaled, weighs, strict=True)]
        weights = [each.value if crossed is None else crossed.source(each) for each in self._trainable]
        gradients, added = (
            [] if each is None else unweighed(biases_apart(tape.gradient(each, weights)), weight)
            for each, weight in zip(scaled, weighs, strict=True)
        )
        begun = {id(variable): value for variable, value in seeds}
        found = [(each, scope.get_current_value(each)) for each in self._state]
        found = [(each, new) for each, new in found if new is not None and new is not begun.get(id(each))]
        self._touched = [each for each, _ in found]
        state = [
            tf.convert_to_tensor(new - begun[id(each)] if id(each) in begun else new) for each, new in found
        ]
        return _Part(gradients, added, losses.weight, state, self._sums(scope, losses, data))

    def _tested(self, data: Any, came: Sequence[tuple[Any, tf.Tensor]] = ()) -> _Part:
        seeds = self._randomness.snapshot()
        with self._scope(seeds, came) as scope, self._randomness.unseeded_from_here():
            losses = self._forward(data, training=False)
            return _Part([], [], losses.weight, [], self._sums(scope, losses, data))

    def _forward(self, data: Any, *, training: bool) -> _Losses:
        model = self._model
        x, y, sample_weight = unpacked(data)
        y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
        with recorded_divisors() as divisors:
            loss = model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        if has_own(model, "compute_loss"):  # it adds up what it likes; what it gives is a mean over examples
            return _Losses(loss, None, batch_size(x))
        weight, is_of_examples = weight_of(divisors, batch_size(x))
        added = [model._aggregate_additional_loss(each) for each in model.losses]
        if is_of_examples or not added or self._strategy.num_replicas_in_sync == 1:
            return _Losses(loss, None, weight)
        return _Losses(loss - tf.add_n(added), tf.add_n(added), weight)

    def _scope(self, seeds: list[tuple[Any, tf.Tensor]], came: Sequence[tuple[Any, tf.Tensor]] = ()) -> Any:
        # Metrics begin from nothing. Penalties on weights ask the scope, and it alone, for the weights.
        here = {id(each) for each, _ in came}
        penalized = [
            each
            for each in self._model.trainable_variables
            if each.regularizer is not None and id(each) not in here
        ]
        metrics = [(each, tf.zeros(each.shape, each.dtype)) for each in self._metrics]
        weights = [(each, tf.convert_to_tensor(each.value)) for each in penalized]
        return self._keras.StatelessScope([*metrics, *weights, *seeds, *came], collect_losses=True)

    def _sums(self, scope: Any, losses: _Losses, data: Any) -> list[tf.Tensor]:
        """Give what adds up: what the metrics counted, and the losses times what they count by."""
        x, _, _ = unpacked(data)

        def weighted(value: Any, weight: Any) -> tf.Tensor:
            return tf.cast(value, tf.float64) * tf.cast(weight, tf.float64)

        of_outputs = [
            tf.math.divide_no_nan(*(scope.get_current_value(part) for part in (each.total, each.count)))
            for each in self._loss_trackers[1:]
        ]
        weight = 1.0 if losses.weight is None else losses.weight
        added = 0.0 if losses.added is None else losses.added
        return [
            *(tf.cast(scope.get_current_value(each), tf.float64) for each in self._metrics),
            weighted(added, batch_size(x)),
            *(weighted(each, weight) for each in (losses.compiled, *of_outputs)),
        ]

    def _counted(self, shared: Shared) -> list[tf.Tensor]:
        """Give what a batch adds to the metrics. Its losses count by its size.

        Keras counts those of several outputs so where it knows the size ahead, and else each batch as one.
        """
        count = len(self._metrics)
        added, *losses, seen = shared.sums[count:]
        found = {id(each): value for each, value in zip(self._metrics, shared.sums[:count], strict=True)}
        for tracker, total in zip(self._loss_trackers, losses, strict=True):
            found[id(tracker.total)] = shared.size * tf.math.divide_no_nan(total, shared.weight)
            found[id(tracker.count)] = shared.size
        found[id(self._loss_trackers[0].total)] += added
        return [*(found[id(each)] for each in self._metrics), seen]
