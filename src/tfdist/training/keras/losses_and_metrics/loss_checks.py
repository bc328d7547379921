"""Refuse a loss that several replicas cannot share, or warn once that it is not the loss of one process."""

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.keras.losses_and_metrics.loss_divisors import (
    Divisor,
    have_several_divisors,
)
from tfdist.training.keras.model_facts import has_own
from tfdist.training.replicas.means_and_sums_in_graph import is_linear_in

INEXACT = (
    "loss: returns one number for a batch; several replicas each compute it on their part, and the mean of"
    " these is the loss of the whole batch only if it is a mean over examples. To have it exact, return a"
    " number for each example"
)
ADDED = (
    "loss: what add_loss or an activity regularizer adds is neither a mean nor a sum over the examples;"
    " several replicas each compute it on their part, and the mean of these counts"
)
_MIXED = (
    "loss: that of an example depends on the other examples (operation %s); several replicas each compute it"
    " on their part of the batch, so it is not the loss of one process"
)
_log = logging.getLogger("tfdist")


class LossWarning:
    """The one warning that a step logs of its loss."""

    def __init__(self) -> None:
        self._is_logged = False

    def log(self, text: str, *names: str) -> None:
        """Log a warning with its names, if none was logged before."""
        if not self._is_logged:
            self._is_logged = True
            _log.warning(text, *names)

    def log_mixed_examples(self, divisors: Sequence[Divisor]) -> None:
        """Log a warning if the loss of an example depends on other examples."""
        mixed_by = next((divisor.mixed_by for divisor in divisors if divisor.mixed_by), None)
        if mixed_by is not None:
            self.log(_MIXED, mixed_by)


def check_rank(loss: tf.Tensor, model: Any, *, of_examples: bool) -> None:
    """Raise ConfigError for a loss of which replicas cannot know how its parts make the whole.

    Its loss should be one for each example if `of_examples`, and one number otherwise.
    """
    if loss.shape.rank is None or (loss.shape.rank > 0) == of_examples:
        return
    where = f"compute_loss of {model.name}" if has_own(model, "compute_loss") else "loss"
    if of_examples:
        problem = "has no reduction, but is one number, of which it is unknown whether it is a sum or a mean"
        raise ConfigError(where, problem, remedy="Return one for each example, or set its reduction")
    raise ConfigError(where, "returns one for each example", remedy="Return their mean, one number")


def check_numbers(divisors: list[Divisor]) -> bool:
    """Check the losses that are one number for a batch, of which each replica has its own.

    Return whether one of them is inexact on several replicas.

    Raises:
        ConfigError: Weights of the examples multiply one number.
    """
    kinds = {divisor.kind for divisor in divisors}
    if "weighted number" in kinds:
        problem = "returns one number for a batch, of which sample weights and class weights weigh no example"
        remedy = "Return a number for each example, as by ops.mean(…, axis=-1)"
        raise ConfigError("loss", problem, remedy=remedy)
    return "number" in kinds


def check_sum(loss: tf.Tensor, divisors: list[Divisor]) -> bool:
    """Check that a model's loss is a sum of losses as Keras has reduced them, such as no root of one.

    Return whether it is another number, which is inexact on several replicas.

    Raises:
        ConfigError: It is another number, of losses that are divided by different numbers.
    """
    if tf.executing_eagerly() or is_linear_in(loss, [divisor.loss for divisor in divisors]):
        return False
    if have_several_divisors(divisors):
        problem = "changes what Keras has reduced over the batch, and others are divided by different numbers"
        raise ConfigError("loss", problem, remedy="Compute it in `call`, which returns one for each example")
    return True
