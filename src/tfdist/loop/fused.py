"""Let Keras's SGD and Adam change a weight in one operation, that does the same sums in the same order.

Keras computes an update in several operations, each of which goes over all weights. TensorFlow has one for
SGD, with and without momentum, and one for Adam, which are atomic, too, where workers go each at their own
pace. What is around an update (clipping, decay, averages, accumulation) is Keras's as ever.

SGD gets the bits of Keras's own. So does Adam in 64 bits; in 32, TensorFlow takes 1 - beta from the beta of
32 bits, where Keras rounds the difference: that is an Adam with a beta_2 of 0.99900001 for 0.999.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["fuse", "fuse_keras_2"]

Update = Callable[[Any, Any, Any, Any], None]


def fuse(optimizer: Any) -> None:
    """Let an optimizer of Keras 3 take TensorFlow's operation for each dense gradient, if it has one."""
    kind = type(optimizer)
    update = _UPDATES.get((kind.__module__, kind.__name__))  # a class derived from it may do something else
    if update is None or getattr(optimizer, "amsgrad", False):
        return

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        # On GPUs it knows no numbers of 16 bits in some versions.
        if isinstance(gradient, tf.IndexedSlices) or variable.dtype not in (tf.float32, tf.float64):
            kind.update_step(optimizer, gradient, variable, learning_rate)
            return
        rate, gradient = tf.cast(learning_rate, variable.dtype), tf.cast(gradient, variable.dtype)
        update(optimizer, variable, rate, gradient)

    optimizer.update_step = update_step


def fuse_keras_2(optimizer: Any) -> None:
    """Let SGD of Keras 2 add to a weight what this gradient makes, and nothing that another worker has made.

    It writes each update into a slot, without momentum too, and adds to the weight what it reads from there.
    Of two workers that go each at its own pace, both may read what one has written.
    """
    kind = type(optimizer)
    if (kind.__module__, kind.__name__) not in _SGD_OF_KERAS_2:
        return

    def update_step(gradient: Any, variable: Any) -> None:
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        if variable.dtype not in (tf.float32, tf.float64) or (is_sparse and optimizer.momentum):
            kind.update_step(optimizer, gradient, variable)
            return
        rate = tf.cast(optimizer.learning_rate, variable.dtype)
        if is_sparse:
            variable.scatter_add(tf.IndexedSlices(-gradient.values * rate, gradient.indices))
        else:
            _sgd(optimizer, variable, rate, gradient)

    optimizer.update_step = update_step


def _sgd(optimizer: Any, variable: Any, rate: tf.Tensor, gradient: tf.Tensor) -> None:
    if not optimizer.momentum:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient, use_locking=True
        )
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=_slot(optimizer, optimizer.momentums, variable),
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_locking=True,
        use_nesterov=optimizer.nesterov,
    )


def _adam(optimizer: Any, variable: Any, rate: tf.Tensor, gradient: tf.Tensor) -> None:
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, variable.dtype)
    betas = optimizer.beta_1, optimizer.beta_2
    # (To cast a number of Python's is to round it to 32 bits first, as Keras does here, and only here.)
    powers = [tf.pow(tf.cast(each, variable.dtype), step) for each in betas]
    beta_1, beta_2, epsilon = (tf.constant(each, variable.dtype) for each in (*betas, optimizer.epsilon))
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=_slot(optimizer, optimizer._momentums, variable),
        v=_slot(optimizer, optimizer._velocities, variable),
        beta1_power=powers[0],
        beta2_power=powers[1],
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
        use_locking=True,
    )


def _slot(optimizer: Any, slots: Any, variable: Any) -> tf.Tensor:
    if hasattr(optimizer, "_index_dict"):  # of Keras 2
        return slots[optimizer._index_dict[optimizer._var_key(variable)]].handle
    return slots[optimizer._get_variable_index(variable)].value.handle


_UPDATES: dict[tuple[str, str], Update] = {
    ("keras.src.optimizers.sgd", "SGD"): _sgd,
    ("keras.src.optimizers.adam", "Adam"): _adam,
    ("keras.src.optimizers.adamw", "AdamW"): _adam,
}
_SGD_OF_KERAS_2 = [
    (module, "SGD")
    for module in ("keras.optimizers.sgd", "keras.src.optimizers.sgd", "tf_keras.src.optimizers.sgd")
]
