"""Let replicas meet within a model: in layers that normalise by the moments of the whole global batch.

Such a layer adds up over the replicas while the model is called. So all of them have to call it, also one
that has no example; and what one replica's loss owes to the others' examples comes back to them as gradients.
"""

from typing import Any

import tensorflow as tf

__all__ = ["meet_in", "shaped", "unweighed", "weighed"]


def meet_in(model: Any) -> bool:
    """Say whether replicas meet in a layer of a Keras 3 model."""
    return any(getattr(each, "synchronized", False) for each in model._flatten_layers())


def weighed(loss: Any, weight: Any) -> Any:
    """Let a loss count by its weight before its gradients reach the other replicas."""
    return loss if weight is None or loss is None else loss * tf.cast(weight, loss.dtype)


def unweighed(gradients: list[Any], weight: Any) -> list[Any]:
    """Give the gradients of a mean again, which are weighed where they are added up."""
    return gradients if weight is None else [_divided(each, weight) for each in gradients]


def shaped(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Let sparse gradients have the shapes of their variables: a replica without examples knows none."""
    return [
        tf.IndexedSlices(each.values, each.indices, tf.constant(tuple(variable.shape), tf.int64))
        if isinstance(each, tf.IndexedSlices)
        else each
        for each, variable in zip(gradients, variables, strict=True)
    ]


def _divided(value: Any, weight: tf.Tensor) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(value.values, weight), value.indices, value.dense_shape)
    return tf.math.divide_no_nan(value, tf.cast(weight, value.dtype))
