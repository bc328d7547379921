"""Compute the gradients of convolution biases apart from those of kernels, on CPUs.

TensorFlow merges the two into one oneDNN operation if both come from the same tensor. That operation computes
the sum over all positions in a slow way, which can cost more than the rest: with 3 channels in and 64 out, 20
ms instead of 10. A sum over the same numbers as a matrix is another operation, and faster.
"""

from typing import Any

import tensorflow as tf

from tfdist.training.replicas.graph_queries import passed_on

_MERGED = "Conv2DBackpropFilter"


def biases_apart(gradients: list[Any]) -> list[Any]:
    """Return the gradients, with those of biases computed apart; they differ only by rounding."""
    # On GPUs TensorFlow merges nothing, and a convolution may have another layout than the matrix.
    if tf.executing_eagerly() or tf.config.list_logical_devices("GPU"):
        return gradients
    return [_apart(gradient) if tf.is_tensor(gradient) else gradient for gradient in gradients]


def _apart(gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient as a sum over a matrix, not over images; TensorFlow drops the unused operation."""
    operation = passed_on(gradient, ("Reshape",)).op  # Keras 3 gives biases the rank of the images
    if operation.type != "BiasAddGrad" or operation.get_attr("data_format") != b"NHWC":
        return gradient
    [images] = operation.inputs
    if all(consumer.type != _MERGED for consumer in images.consumers()):
        return gradient
    apart = tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(images, [-1, images.shape[-1]]))
    return tf.reshape(apart, gradient.shape)
