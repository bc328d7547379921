"""Find what layers, or a custom step, write while a Keras 3 model is called, for replicas to share."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import layers_of, loss_trackers, variables_of_metric
from tfdist.errors import ConfigError
from tfdist.training.keras.model_facts import is_alone
from tfdist.training.keras.rng import Randomness
from tfdist.training.keras.stateless_scopes import RecordingScope
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of
from tfdist.training.replicas.ops_across_examples import is_total_of_rows, keeps_rows

AVERAGED = (
    "layer state %s is declared or computed as a sum, a maximum, a variance or a quotient of sums over a"
    " batch; each replica writes it for its part of the batch, and it becomes the mean over the examples of"
    " all parts. Count in a metric to have sums"
)
MIXED = (
    "state %s is assigned examples of a batch, or what is computed of each, as in a queue of features; each"
    " replica has those of its part, and the mean of what the replicas assign is not what one process has."
    " Train on one_device"
)
_log = logging.getLogger("tfdist")


class LayerWrites:
    """The writes of the layers of a model, besides those of its metrics and its optimizer."""

    def __init__(
        self, model: Any, strategy: tf.distribute.Strategy, randomness: Randomness, *, method: str = ""
    ) -> None:
        """Store what writes: the layers of a model, or else its own `method`, which replicas share."""
        self._model, self._randomness, self._method = model, randomness, method
        self._may_hide = is_alone(strategy) and not method
        self._is_in_parts, self._named = strategy.num_replicas_in_sync > 1, set[str]()

    def found(
        self, scope: RecordingScope, apart: Collection[Any] = (), rows: int | None = None
    ) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that were written to in a scope, except those `apart`, with their values.

        `rows` is the number of examples, None in a graph that does not fix it.

        A model that names its own `metrics` leaves out those of the losses of its outputs, which Keras then
        counts, and neither resets nor shows: they are left out here too.

        Raises:
            ConfigError: A layer writes a weight in shards, whose new value has no gradient for each shard; or
                several replicas or workers write a variable that is not one of the model, as the states of
                a recurrent layer are not.
        """
        trackers = [tracker for tracker in loss_trackers(self._model) if tracker is not None]
        of_losses = [variable for tracker in trackers for variable in variables_of_metric(tracker)]
        skipped = {id(variable) for variable in (*apart, *of_losses)}
        found = [(variable, value) for variable, value in scope.written() if id(variable) not in skipped]
        where = f"model {self._model.name}"
        for variable, _ in found:
            if variable.trainable and len(parts_of([variable])) > 1:
                problem = f"writes {variable.path} while it is called, and that weight is in shards"
                raise ConfigError(where, problem, remedy="Leave out min_shard_bytes and max_shards")
        own = {id(variable) for variable in (*self._model.variables, *self._randomness.unseeded)}
        hidden = [variable.path for variable, _ in found if id(variable) not in own]
        if hidden and self._method:
            problem = f"writes to {hidden[0]}, a variable that neither the model nor its metrics have"
            remedy = "Make the metric or variable an attribute of the model"
            raise ConfigError(f"{self._method} of {where}", problem, remedy=remedy)
        if hidden and not self._may_hide:
            problem = f"writes {hidden[0]} while it is called, a variable that belongs to none of its layers"
            remedy = "Make the variable, or its metric or SeedGenerator, an attribute of the layer"
            raise ConfigError(where, problem, remedy=remedy)
        if self._is_in_parts:
            self._warn_of_parts(found, rows)
        return found

    def _warn_of_parts(self, found: Sequence[tuple[Any, tf.Tensor]], rows: int | None) -> None:
        """Warn once of each variable of which the mean of the replicas' values is not that of one process."""
        normal = keras_of(self._model).layers.BatchNormalization  # of which parts are the documented use
        layers = [layer for layer in layers_of(self._model) if isinstance(layer, normal)]
        moments = {id(variable) for layer in layers for variable in layer.variables}
        others = [(variable, value) for variable, value in found if id(variable) not in moments]
        for variable, value in sorted(others, key=lambda pair: str(pair[0].path)):
            warning = AVERAGED if getattr(variable, "aggregation", "") == "sum" else None
            warning = warning or warning_of_assignment(tf.convert_to_tensor(value), rows)
            if warning is not None and variable.path not in self._named:
                _log.warning(warning, variable.path)
                self._named.add(variable.path)

    def to_share(
        self, found: Sequence[tuple[Any, tf.Tensor]], seeds: Sequence[tuple[Any, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Return what replicas share of the values: of generators, how far they moved on from `seeds`."""
        drawn = {id(variable): value for variable, value in seeds}
        return [
            tf.convert_to_tensor(value - drawn[id(variable)] if id(variable) in drawn else value)
            for variable, value in found
        ]


def warning_of_assignment(value: tf.Tensor, rows: int | None) -> str | None:
    """Return the warning of a value that replicas assign, if its mean is not that of one process.

    `rows` is the number of examples, None in a graph that does not fix it.
    """
    if tf.executing_eagerly():  # nothing shows how it is computed
        return None
    if is_total_of_rows(value, rows):
        return AVERAGED
    return MIXED if keeps_rows(value, rows) else None
