"""Let Keras 3's SGD change a weight in one operation, that does the same sums in the same order.

Keras computes an update in several operations, each of which goes over all weights. For SGD, with and without
momentum, TensorFlow has one, which is atomic, too, where workers go each at their own pace. Its one for Adam
takes 1 - beta from a beta of 32 bits, which is off by 1e-5, so Keras's own stays; and what is around an
update (clipping, decay, averages, accumulation) is Keras's as ever.
"""

from typing import Any

import tensorflow as tf

__all__ = ["fuse"]

_SGD = ("keras.src.optimizers.sgd", "SGD")


def fuse(optimizer: Any) -> None:
    """Let the optimizer take TensorFlow's operation for each dense gradient, if it is Keras's own SGD."""
    kind = type(optimizer)
    if (kind.__module__, kind.__name__) != _SGD:
        return  # a class derived from it may do something else

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        # On GPUs it knows no numbers of 16 bits in some versions.
        if isinstance(gradient, tf.IndexedSlices) or variable.dtype not in (tf.float32, tf.float64):
            kind.update_step(optimizer, gradient, variable, learning_rate)
            return
        rate, gradient = tf.cast(learning_rate, variable.dtype), tf.cast(gradient, variable.dtype)
        if not optimizer.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=rate, delta=gradient, use_locking=True
            )
            return
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=optimizer.momentums[optimizer._get_variable_index(variable)].value.handle,
            lr=rate,
            grad=gradient,
            momentum=tf.cast(optimizer.momentum, variable.dtype),
            use_locking=True,
            use_nesterov=optimizer.nesterov,
        )

    optimizer.update_step = update_step
