"""Convert tensors to the types that TensorFlow broadcasts among workers, and back, bit by bit.

TensorFlow takes bool, float16, float32, float64, int32 and int64. A quantized layer has weights of int8, and
the policy `bfloat16` has weights of that type.
"""

import tensorflow as tf

from tfdist.errors import ConfigError

__all__ = ["as_broadcast", "from_broadcast"]

_TAKEN = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_OF_SIZE = {1: tf.uint8, 2: tf.float16, 4: tf.int32, 8: tf.int64, 16: tf.int64}


def as_broadcast(value: tf.Tensor) -> tf.Tensor:
    """Return the bits of a tensor in a type that TensorFlow broadcasts.

    Raises:
        ConfigError: The tensor is text, of which TensorFlow gives no bits.
    """
    if value.dtype in _TAKEN:
        return value
    if value.dtype == tf.string:
        remedy = "Use a Python attribute, or a layer such as StringLookup"
        raise ConfigError("a tf.Variable of text", "is not supported with mirrored workers", remedy=remedy)
    bits = tf.bitcast(value, _OF_SIZE[value.dtype.size])
    return tf.cast(bits, tf.float16) if bits.dtype == tf.uint8 else bits  # which has all numbers up to 2048


def from_broadcast(sent: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the tensor of this type that `as_broadcast` took the bits of."""
    if sent.dtype == dtype:
        return sent
    bits = tf.cast(sent, tf.uint8) if dtype.size == 1 else sent
    return tf.bitcast(bits, dtype)
