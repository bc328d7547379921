"""Compute the loss of a Keras 3 model on a replica's part of a batch, in parts with divisors of their own."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.keras_private import added_losses, compiled_loss, count_of_compiled_losses, loss_trackers
from tfdist.training.keras.losses_and_metrics.loss_checks import (
    ADDED,
    INEXACT,
    LossWarning,
    check_numbers,
    check_rank,
    check_sum,
)
from tfdist.training.keras.losses_and_metrics.loss_divisors import (
    Divisor,
    have_several_divisors,
    recorded_divisors,
)
from tfdist.training.keras.losses_and_metrics.loss_parts import (
    Added,
    LossPart,
    added_by_reduction,
    as_one_part,
    has_other_reduction,
    parts_by_divisor,
    parts_by_reduction,
    with_places,
)
from tfdist.training.keras.model_facts import has_own, reductions
from tfdist.training.replicas.reduction import batch_size, rows_of


class Losses(NamedTuple):
    """The loss of a replica.

    Attributes:
        parts: The parts of the loss with divisors of their own. With `reduction=None`, the only one has a
            loss for each example, and no gradient but that of their sum.
        places: The place among the parts of the loss of each output, where there are several outputs.
    """

    parts: list[LossPart]
    places: list[int]

    @property
    def weights(self) -> list[tf.Tensor | None]:
        """Return the divisor of each part, None for a part that is not divided."""
        return [part.weight for part in self.parts]

    @property
    def sums(self) -> list[tf.Tensor | None]:
        """Return the sum of which the divisor of each part is computed, None for other parts."""
        return [None if part.of_sum is None else part.of_sum.number for part in self.parts]


class ModelLosses:
    """The losses of a model, which each replica computes on its part of a batch.

    Attributes:
        trackers: The metrics that average the loss and, where there are several outputs, that of each output.
        are_of_examples: Whether the loss has no reduction, so that it has a number for each example.
    """

    def __init__(self, model: Any, replicas: int, warning: LossWarning) -> None:
        """Prepare the losses of a compiled model; warn of one that `replicas` cannot share exactly."""
        self._model, self._replicas, self._warning = model, replicas, warning
        self._has_own_compute_loss = has_own(model, "compute_loss")
        self.trackers = loss_trackers(model)
        self.are_of_examples = reductions(model) == {"none"} and not self._has_own_compute_loss

    def compute(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Losses:
        """Return the losses of a replica's part of a batch, within `losses_of_one_process`.

        Raises:
            ConfigError: Several replicas cannot share the loss.
        """
        with tf.GradientTape() as tape, recorded_divisors(rows_of(x), tape.watch) as divisors:
            loss = compiled_loss(
                self._model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
        if self._replicas > 1:
            self._check(loss, divisors)
        return self._in_parts(loss, divisors, batch_size(x), rows_of(x), tape)

    def _check(self, loss: tf.Tensor, divisors: list[Divisor]) -> None:
        check_rank(loss, self._model, of_examples=self.are_of_examples)
        self._warning.log_mixed_examples(divisors)
        are_numbers = check_numbers(divisors)
        if not self._has_own_compute_loss and (are_numbers | check_sum(loss, divisors)):
            self._warning.log(INEXACT)

    def _in_parts(
        self, loss: tf.Tensor, divisors: list[Divisor], size: tf.Tensor, rows: int | None, tape: Any
    ) -> Losses:
        """Divide the loss into parts with divisors of their own; the tape has recorded its computation."""
        outputs = len(self.trackers) - 1
        places = [0] * outputs
        if self.are_of_examples:
            return Losses([LossPart(loss, None)], places)
        # The `__call__` of a loss may be its own.
        if self._has_own_compute_loss or len(divisors) < count_of_compiled_losses(self._model):
            parts = self._own_parts(loss, divisors, size, rows)
            if self._replicas > 1 and len(divisors) == outputs:
                return Losses(*with_places(parts, divisors, size))
            return Losses(parts, places)
        losses = added_losses(self._model)
        if self._replicas > 1 and has_other_reduction(losses, rows):
            self._warning.log(ADDED)
        added = added_by_reduction(losses, self._model.losses, rows)
        if self._replicas > 1 and have_several_divisors(divisors) and len(divisors) == outputs:
            return Losses(*parts_by_divisor(loss, divisors, added, size, tape))
        part, is_of_examples = as_one_part(loss, divisors, size, replicas=self._replicas)
        means, sums = [] if is_of_examples else added.means, [] if part.weight is None else added.sums
        others = Added(means, sums).parts(size)
        if self._replicas == 1 or not others:
            return Losses([part], places)
        rest = loss - tf.add_n([tf.cast(part.loss, loss.dtype) for part in others])
        return Losses([part._replace(loss=rest), *others], places)

    def _own_parts(
        self, loss: tf.Tensor, divisors: list[Divisor], size: tf.Tensor, rows: int | None
    ) -> list[LossPart]:
        """Return the parts of a loss that the model computes by itself; by default it is a mean."""
        parts = parts_by_reduction(loss, divisors, rows, size) if self._replicas > 1 else None
        if parts is None and self._replicas > 1 and not tf.executing_eagerly():
            self._warning.log(INEXACT)
        return parts or [LossPart(loss, size)]
