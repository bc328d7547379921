"""Change the values of gradients, which are tensors or IndexedSlices, and list their tensors."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def with_values(gradient: Any, change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Return a gradient whose values a function has changed; None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def tensors_of(values: Any) -> list[tf.Tensor]:
    """Return the tensors in a structure, such as gradients: those that IndexedSlices consist of, too."""
    flat = tf.nest.flatten(values, expand_composites=True)
    return [value for value in flat if value is not None and tf.is_tensor(value)]


def scaled(gradient: Any, factor: Any) -> Any:
    """Return a gradient times a number, which is rounded to the gradient's type first."""
    return with_values(gradient, lambda values: values * tf.cast(factor, values.dtype))


def divided(gradient: Any, divisor: Any) -> Any:
    """Return a gradient divided by a number, which is rounded to the gradient's type first."""
    return with_values(gradient, lambda values: values / tf.cast(divisor, values.dtype))


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
