"""Support layers that normalise by the moments of the whole global batch.

Such a layer adds values up over the replicas while the model is called. So all replicas must call the model,
also a replica without examples. The loss of one replica then depends on the examples of the others, and its
gradients flow back to them.
"""

from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import layers_of
from tfdist.strategies.gradient_arithmetic import with_values

__all__ = ["has_synchronized_layers", "shaped", "unweighed", "weighed"]


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


def shaped(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Return gradients with the static shapes of their variables.

    TensorFlow infers no shape for the gradient of a product of 3-D inputs, and a replica without examples has
    no other source for it.
    """
    return [_shaped(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]


def _shaped(gradient: Any, variable: Any) -> Any:
    if gradient is None:
        return None
    shape = tuple(variable.shape)
    if isinstance(gradient, tf.IndexedSlices):
        gradient.values.set_shape((None, *shape[1:]))
        return tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape, tf.int64))
    gradient.set_shape(shape)
    return gradient
