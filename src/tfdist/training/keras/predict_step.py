"""Run one predict step of a Keras 3 model on several replicas or workers.

As in evaluation, what layers write while they are called is caught, shared by the replicas, and written once.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist.training.empty_replicas import computed_or_zero
from tfdist.training.keras.caught_writes import noted_scope
from tfdist.training.keras.compat import keras_of
from tfdist.training.keras.layer_writes import LayerWrites
from tfdist.training.keras.refused_assignments import assignments_refused
from tfdist.training.keras.rng import Randomness
from tfdist.training.ps_cache import PsCache, read_whole
from tfdist.training.reduction import shared_mean

__all__ = ["PredictPart", "PredictStep"]

# Returns the numbers and the outputs of the examples in a replica's part of a batch.
PredictPart: TypeAlias = Callable[[Any], tuple[tf.Tensor, Any]]


class PredictStep:
    """A step that predicts, each replica for its part of a batch."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, randomness: Randomness) -> None:
        self._keras, self._model, self._strategy = keras_of(model), model, strategy
        self._randomness = randomness
        self._layer_writes = LayerWrites(model, strategy, randomness)

    def run(
        self, predict_part: PredictPart, batch: Any, came: Sequence[tuple[Any, tf.Tensor]] = ()
    ) -> tuple[Any, Any]:
        """Return the examples' numbers and outputs, as `strategy.run` does; write what layers have written.

        Args:
            predict_part: What a replica computes from its part of a batch: the same of its examples.
            batch: The batch.
            came: Variables with values that were fetched before.
        """
        numbers, outputs, written = self._predicted(predict_part, batch, came)
        for variable, value in written:
            self._randomness.write(variable, self._strategy.experimental_local_results(value)[0])
        return numbers, outputs

    def ps_cache(self, predict_part: PredictPart, spec: Any) -> PsCache:
        """Return the cache of what a worker fetches from parameter servers once for many batches."""
        written: list[Any] = []

        def predicted(batch: Any) -> Any:
            numbers, outputs, pairs = self._predicted(predict_part, batch, ())
            written[:] = [variable for variable, _ in pairs]
            return numbers, outputs

        variables = [variable for variable in self._model.variables if not self._randomness.owns(variable)]
        read = read_whole(variables, predicted, spec)
        changed = set(map(id, written))
        return PsCache([variable for variable in read if id(variable) not in changed])

    def _predicted(
        self, predict_part: PredictPart, batch: Any, came: Sequence[tuple[Any, tf.Tensor]]
    ) -> tuple[Any, Any, list[tuple[Any, Any]]]:
        """Return numbers and outputs, and the variables that layers have written, with what to write."""
        written: list[Any] = []

        def on_replica(data: Any) -> tuple[Any, Any, list[tf.Tensor]]:
            seeds = self._randomness.snapshot()
            with noted_scope(self._keras, [*seeds, *came]) as scope, self._randomness.unseeded_from_here():
                numbers, outputs = predict_part(data)
            found = self._layer_writes.found(scope)
            written[:] = [variable for variable, _ in found]
            state = self._layer_writes.to_share(found, seeds)
            if state and tf.distribute.get_replica_context().num_replicas_in_sync > 1:
                size = tf.shape(numbers)[0]
                state = computed_or_zero(lambda: state, size)
                state = shared_mean([], state, [], size=size, weight=None).state
            return numbers, outputs, state

        with self._randomness.drawing(), assignments_refused(self._model):
            numbers, outputs, state = self._strategy.run(on_replica, args=(batch,))
        return numbers, outputs, list(zip(written, state, strict=True))
