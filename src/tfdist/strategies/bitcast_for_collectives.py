"""Convert tensors to the types that TensorFlow's collectives take, and back, bit by bit.

All of them take float16, float32, float64, int32 and int64. A quantized layer has weights of int8, and a
model of the policy `mixed_bfloat16` predicts in bfloat16.
"""

import tensorflow as tf

from tfdist.errors import ConfigError

_TAKEN = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_OF_SIZE = {1: tf.uint8, 2: tf.float16, 4: tf.int32, 8: tf.int64, 16: tf.int64}


def to_collective_type(value: tf.Tensor) -> tf.Tensor:
    """Return the bits of a tensor in a type that TensorFlow's collectives take.

    Raises:
        ConfigError: The tensor is text, of which TensorFlow gives no bits.
    """
    if value.dtype in _TAKEN:
        return value
    if value.dtype == tf.string:
        remedy = "Use numbers, and convert them to text and back in Python"
        raise ConfigError("text in a tensor", "cannot be sent to other mirrored workers", remedy=remedy)
    if value.dtype == tf.bool:
        return tf.cast(value, tf.float16)
    bits = tf.bitcast(value, _OF_SIZE[value.dtype.size])
    return tf.cast(bits, tf.float16) if bits.dtype == tf.uint8 else bits  # which has all numbers up to 2048


def from_collective_type(sent: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the tensor of this type that `to_collective_type` took the bits of."""
    if dtype in (sent.dtype, tf.bool):
        return tf.cast(sent, dtype)
    bits = tf.cast(sent, tf.uint8) if dtype.size == 1 else sent
    return tf.bitcast(bits, dtype)
