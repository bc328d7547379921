"""Call a model whose layers exchange values between replicas, and weigh its losses for that.

A synchronized layer normalizes by the moments of the whole global batch, and adds values up over the replicas
while the model is called. So all replicas must call the model, also a replica without examples. The loss of
one replica then depends on the examples of the others, and its gradients flow back to them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import (
    added_losses_of_threads,
    empty_batches_convolved,
    layers_of,
    masked_moments_synchronized,
)
from tfdist.strategies.gradient_arithmetic import with_values


@contextlib.contextmanager
def replicas_called_together(keras: Any, model: Any, replicas: int) -> Iterator[None]:
    """Prepare a Keras 3 model, within the block, for several replicas that meet in its layers."""
    if replicas == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(added_losses_of_threads(model))
        if has_synchronized_layers(model):  # which an empty batch reaches
            stack.enter_context(masked_moments_synchronized(keras, model))
            stack.enter_context(empty_batches_convolved(keras))
        yield


def has_synchronized_layers(model: Any) -> bool:
    """Return whether replicas exchange values in a layer of a Keras 3 model."""
    return any(getattr(layer, "synchronized", False) for layer in layers_of(model))


def weighed(loss: Any, weight: Any) -> Any:
    """Return a loss times its weight, so that its gradients on other replicas are weighted too."""
    return loss if weight is None or loss is None else loss * tf.cast(weight, loss.dtype)


def unweighed(gradients: list[Any], weight: Any) -> list[Any]:
    """Return gradients divided by their weight, which the reduction applies again."""
    if weight is None:
        return gradients

    def unweigh(values: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(values, tf.cast(weight, values.dtype))

    return [with_values(gradient, unweigh) for gradient in gradients]
