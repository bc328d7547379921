"""Keep the gradients of convolutions' biases apart from those of their kernels, on CPUs.

TensorFlow lets oneDNN compute the two in one operation where both come from the same tensor, and there the
sum over all positions is taken in a way that can cost more than the rest: with 3 channels in and 64 out,
20 ms in place of 10. A sum over the same numbers as a matrix is another operation, and quicker.
"""

from typing import Any

import tensorflow as tf

__all__ = ["biases_apart"]

_MERGED = "Conv2DBackpropFilter"


def biases_apart(gradients: list[Any]) -> list[Any]:
    """Give the gradients, those of biases computed apart from the kernels': the same but for rounding."""
    # On GPUs nothing is merged, and a convolution's layout may not be that of the matrix.
    if tf.executing_eagerly() or tf.config.list_logical_devices("GPU"):
        return gradients
    return [_apart(each) if tf.is_tensor(each) else each for each in gradients]


def _apart(gradient: tf.Tensor) -> tf.Tensor:
    """Take the sum over a matrix, not over images; the operation that nothing uses then, TensorFlow drops."""
    operation = gradient.op
    while operation.type == "Reshape":  # Keras 3 gives biases the rank of the images
        operation = operation.inputs[0].op
    if operation.type != "BiasAddGrad" or operation.get_attr("data_format") != b"NHWC":
        return gradient
    [images] = operation.inputs
    if all(each.type != _MERGED for each in images.consumers()):
        return gradient
    apart = tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(images, [-1, images.shape[-1]]))
    return tf.reshape(apart, gradient.shape)
