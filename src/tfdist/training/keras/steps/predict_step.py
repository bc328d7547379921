"""Predict for one batch.

If several replicas or workers call a Keras 3 model, the writes of its layers are caught, as in evaluation,
shared by the replicas, and made once.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, keras_of
from tfdist.training.keras.layer_writes import LayerWrites
from tfdist.training.keras.refuse_assignments import assignments_refused
from tfdist.training.keras.rng import GraphSeed, Randomness
from tfdist.training.keras.stateless_scopes import recording_scope
from tfdist.training.keras.steps.step_base import traced_in_place
from tfdist.training.parameter_servers.sharded_keras_variables import variables_read_in_place
from tfdist.training.parameter_servers.variable_cache import PsCache
from tfdist.training.replicas.empty_replicas import computed_or_zero
from tfdist.training.replicas.reduction import shared_mean

# Returns the numbers and the outputs of the examples in a replica's part of a batch.
PredictPart: TypeAlias = Callable[[Any], tuple[tf.Tensor, Any]]


class PlainPredictStep:
    """A step that predicts as Keras does: in one process, or of Keras 2, which writes at once."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, predict_part: PredictPart) -> None:
        self._model, self._strategy, self._predict_part = model, strategy, predict_part

    def run(self, batch: Any, came: Sequence[tuple[Any, tf.Tensor]] = ()) -> tuple[Any, Any]:
        """Return the examples' numbers and outputs, as `strategy.run` does."""
        del came
        with variables_read_in_place(self._model):
            return self._strategy.run(self._predict_part, args=(batch,))  # type: ignore[no-any-return]

    def ps_cache(self, spec: Any) -> PsCache:
        """Return a cache of nothing."""
        del spec
        return PsCache(())


class PredictStep:
    """A step that predicts, each replica or worker for its part of a batch."""

    def __init__(
        self, model: Any, strategy: tf.distribute.Strategy, randomness: Randomness, predict_part: PredictPart
    ) -> None:
        self._keras, self._model, self._strategy = keras_of(model), model, strategy
        self._randomness, self._predict_part = randomness, predict_part
        self._layer_writes = LayerWrites(model, strategy, randomness)

    def run(self, batch: Any, came: Sequence[tuple[Any, tf.Tensor]] = ()) -> tuple[Any, Any]:
        """Return the examples' numbers and outputs, as `strategy.run` does; write what layers have written.

        `came` are variables with values that were fetched before.
        """
        numbers, outputs, written = self._predicted(batch, came)
        for variable, value in written:
            self._randomness.write(variable, self._strategy.experimental_local_results(value)[0])
        return numbers, outputs

    def ps_cache(self, spec: Any) -> PsCache:
        """Return the cache of what a worker fetches from parameter servers once for many batches."""

        def predicted(batch: Any) -> tuple[Any, list[Any]]:
            numbers, outputs, written = self._predicted(batch, ())
            return (numbers, outputs), [variable for variable, _ in written]

        read = [variable for variable in all_variables(self._model) if not self._randomness.owns(variable)]
        return PsCache.for_step(read, predicted, spec)

    def _predicted(
        self, batch: Any, came: Sequence[tuple[Any, tf.Tensor]]
    ) -> tuple[Any, Any, list[tuple[Any, Any]]]:
        """Return numbers and outputs, and the variables that layers have written, with what to write."""
        written: list[Any] = []
        seed = GraphSeed(self._strategy)

        def on_replica(data: Any) -> tuple[Any, Any, list[tf.Tensor]]:
            seeds = self._randomness.snapshot()
            with (
                recording_scope(self._keras, [*seeds, *came]) as scope,
                self._randomness.unseeded_from_here(),
                seed.of_this_replica(),
            ):
                numbers, outputs = self._predict_part(data)
            found = self._layer_writes.found(scope, apart=self._model.metrics_variables)
            written[:] = [variable for variable, _ in found]
            state = self._layer_writes.to_share(found, seeds)
            if state and tf.distribute.get_replica_context().num_replicas_in_sync > 1:
                size = tf.shape(numbers)[0]
                state = computed_or_zero(lambda: state, size)
                state = shared_mean([], state, [], size=size).state
            return numbers, outputs, state

        with traced_in_place(self._model, self._randomness), assignments_refused(self._model):
            numbers, outputs, state = self._strategy.run(on_replica, args=(batch,))
        return numbers, outputs, list(zip(written, state, strict=True))
