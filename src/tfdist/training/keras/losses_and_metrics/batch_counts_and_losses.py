"""Add up what a batch counts: each replica's counts and losses become what the batch adds to the metrics."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.training.keras.losses_and_metrics.compute_loss import Losses, ModelLosses
from tfdist.training.keras.losses_and_metrics.loss_parts import mean_of
from tfdist.training.keras.losses_and_metrics.metric_state import MetricState
from tfdist.training.keras.losses_and_metrics.scalar_batch_metrics import NO_NUMBERS, BatchMeans, Numbers


class SumsLayout(NamedTuple):
    """What the values that replicas add up stand for, beside the counts of metrics and the parts of the loss.

    Attributes:
        places: The place among the parts of the loss of the loss of each output.
        numbers: The numbers that metrics get for the batch.
        wholes: How the divisor of each part of the loss is computed of a sum; None for other parts.
    """

    places: list[int]
    numbers: Numbers
    wholes: Sequence[Callable[[tf.Tensor], tf.Tensor] | None] = ()


NOTHING_COUNTED = SumsLayout([], NO_NUMBERS)


class StepSums:
    """The values that the replicas of a step add up.

    They are those of the metrics' variables, each part of the loss times its weight, the loss of each output
    times the weight of its part, and the terms of the numbers that metrics get for a batch.
    """

    def __init__(
        self, model: Any, metrics: MetricState, losses: ModelLosses, batch_means: BatchMeans
    ) -> None:
        self._model, self._metrics = model, metrics
        self._losses, self._batch_means = losses, batch_means

    def of_replica(self, scope: Any, losses: Losses, layout: SumsLayout, size: tf.Tensor) -> list[tf.Tensor]:
        """Return the values of a replica, from the scope in which its metrics have counted."""
        of_outputs = [
            tf.math.divide_no_nan(*(scope.get_current_value(part) for part in (tracker.total, tracker.count)))
            for tracker in self._losses.trackers[1:]
        ]
        weights: list[Any] = [1.0 if weight is None else weight for weight in losses.weights]
        if self._losses.are_of_examples:  # their mean is logged
            weights = [size]
        return [
            *self._batch_means.weighted(self._metrics.variables, self._metrics.counted(scope), size),
            *(_weighted(mean_of(part.loss), by) for part, by in zip(losses.parts, weights, strict=True)),
            *(_weighted(loss, weights[at]) for loss, at in zip(of_outputs, layout.places, strict=True)),
            *layout.numbers.sums(size),
        ]

    def loss_in(self, sums: Sequence[tf.Tensor], layout: SumsLayout) -> tf.Tensor:
        """Return the sum of all losses in a replica's values, which shows whether one is NaN or infinite."""
        return tf.add_n(sums[len(self._metrics.variables) : len(sums) - layout.numbers.count])

    def to_add_up(
        self, sums: Sequence[tf.Tensor], counted: Sequence[tf.Tensor], size: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return what the replicas add up, from a replica's values and the totals before the batch."""
        count = len(self._metrics.variables)
        return [*self._metrics.to_add_up(sums[:count], counted, size), *sums[count:]]

    def of_batch(
        self, sums: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], size: tf.Tensor, layout: SumsLayout
    ) -> list[tf.Tensor]:
        """Return what a batch adds to the variables of the metrics, from the sums over the replicas.

        Its loss counts by its size, and the losses of several outputs as Keras counts them: each batch as
        one, since a graph does not know its size in advance; by size without a graph or a reduction.
        """
        variables = self._metrics.variables
        losses = sums[len(variables) :]
        averaged = self._batch_means.averaged(variables, sums[: len(variables)], size)
        counts = {id(variable): value for variable, value in zip(variables, averaged, strict=True)}
        weights = [size] if self._losses.are_of_examples else weights
        parts, others = losses[: len(weights)], losses[len(weights) :]
        of_outputs, numbers = others[: len(layout.places)], others[len(layout.places) :]
        counts |= layout.numbers.totals(numbers, size)
        loss = tf.add_n(list(map(tf.math.divide_no_nan, parts, weights)))
        means = [
            tf.math.divide_no_nan(total, weights[at])
            for total, at in zip(of_outputs, layout.places, strict=True)
        ]
        is_by_size = self._model.run_eagerly or self._losses.are_of_examples
        of_output = size if is_by_size else tf.cast(size > 0, size.dtype)
        sizes = [size, *(of_output for _ in means)]
        for tracker, mean, by in zip(self._losses.trackers, [loss, *means], sizes, strict=True):
            counts[id(tracker.total)], counts[id(tracker.count)] = by * mean, by
        return [counts[id(variable)] for variable in variables]


def _weighted(value: Any, weight: Any) -> tf.Tensor:
    return tf.cast(value, tf.float64) * tf.cast(weight, tf.float64)
