"""Check losses with `reduction=None`: one for each example, or for each of its values.

Keras 3 takes the gradient of their sum, and logs their mean.
"""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.model_checks import has_own

__all__ = ["check_rank", "mean_of"]


def check_rank(loss: tf.Tensor, model: Any, *, of_examples: bool) -> None:
    """Raise ConfigError for a loss of which replicas cannot know how its parts make the whole.

    Args:
        loss: The loss of a replica.
        model: The model.
        of_examples: Whether it should be one for each example, and not one number.
    """
    if loss.shape.rank is None or (loss.shape.rank > 0) == of_examples:
        return
    where = f"compute_loss of {model.name}" if has_own(model, "compute_loss") else "loss"
    if of_examples:
        problem = "has no reduction, but is one number, of which it is unknown whether it is a sum or a mean"
        raise ConfigError(where, problem, remedy="Return one for each example, or set its reduction")
    raise ConfigError(where, "returns one for each example", remedy="Return their mean, one number")


def mean_of(loss: tf.Tensor) -> tf.Tensor:
    """Return the mean of the losses of the examples, zero if there are none; one number is its own mean."""
    if loss.shape.rank == 0:
        return loss
    return tf.math.divide_no_nan(tf.reduce_sum(loss), tf.cast(tf.size(loss), loss.dtype))
