"""Update a weight with less work in Keras's SGD and Adagrad, with the same arithmetic in the same order.

Keras computes an update in several operations, each of which goes over all weights. TensorFlow has one
operation for SGD, with and without momentum. It is also atomic if asynchronous workers update the same
weight. Adagrad changes nothing in rows of an embedding without a gradient, so it needs to read the others
only. Keras still does what surrounds an update: clipping, decay, averages, accumulation.

The fused kernel of SGD gives the same bits as Keras. TensorFlow's operation for Adam would give others in 32
bits: it computes 1 - beta from the beta of 32 bits, and Keras rounds the difference.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import (
    adagrad_accumulators,
    is_adagrad_of_keras,
    is_sgd_of_keras,
    slot_of,
    slot_of_keras_2,
)
from tfdist._utils.temporary_patches import attributes_set
from tfdist.training.parameter_servers.sharded_keras_variables import read_rows


def fused(optimizer: Any) -> AbstractContextManager[None]:
    """Make Keras 3's SGD use TensorFlow's operation, and its Adagrad read only the rows that change.

    Within the block, and not if somebody else has replaced the method.
    """
    kinds = ((is_sgd_of_keras, _step_of_sgd), (is_adagrad_of_keras, _step_of_adagrad))
    step = next((step for is_of_kind, step in kinds if is_of_kind(optimizer)), None)
    if step is None or "update_step" in vars(optimizer):
        return nullcontext()
    return attributes_set(optimizer, update_step=functools.partial(step, optimizer))


def _step_of_adagrad(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    if not isinstance(gradient, tf.IndexedSlices):
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
        return
    rate, values = (tf.cast(value, variable.dtype) for value in (learning_rate, gradient.values))
    accumulator = slot_of(optimizer, adagrad_accumulators(optimizer), variable)
    accumulator.scatter_add(tf.IndexedSlices(tf.square(values), gradient.indices))
    rows, places = tf.unique(gradient.indices)
    roots = tf.sqrt(read_rows(accumulator, rows) + tf.constant(optimizer.epsilon, variable.dtype))
    change = rate * values / tf.gather(roots, places)
    optimizer.assign_sub(variable, tf.IndexedSlices(change, gradient.indices))


def _step_of_sgd(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    # Some versions of the operation do not support 16-bit numbers on GPUs.
    if isinstance(gradient, tf.IndexedSlices) or variable.dtype not in (tf.float32, tf.float64):
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
        return
    rate, gradient = tf.cast(learning_rate, variable.dtype), tf.cast(gradient, variable.dtype)
    _update(optimizer, variable, rate, gradient, slot_of)


def fused_keras_2(optimizer: Any) -> AbstractContextManager[None]:
    """Make Keras 2's SGD add the update of this gradient to a weight, and never another worker's update.

    Keras 2's SGD writes each update into a slot, even without momentum, and adds what it reads from the slot
    to the weight. Two asynchronous workers may both read the update that one of them has written.
    """
    if not is_sgd_of_keras(optimizer):
        return nullcontext()
    return attributes_set(optimizer, update_step=functools.partial(_step_of_keras_2, optimizer))


def _step_of_keras_2(optimizer: Any, gradient: Any, variable: Any) -> None:
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    if variable.dtype not in (tf.float32, tf.float64) or (is_sparse and optimizer.momentum):
        type(optimizer).update_step(optimizer, gradient, variable)
        return
    rate = tf.cast(optimizer.learning_rate, variable.dtype)
    if is_sparse:
        variable.scatter_add(tf.IndexedSlices(-gradient.values * rate, gradient.indices))
    else:
        _update(optimizer, variable, rate, gradient, slot_of_keras_2)


def _update(
    optimizer: Any, variable: Any, rate: tf.Tensor, gradient: tf.Tensor, find_slot: Callable[..., Any]
) -> None:
    if not optimizer.momentum:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient, use_locking=True
        )
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=find_slot(optimizer, optimizer.momentums, variable).handle,
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_locking=True,
        use_nesterov=optimizer.nesterov,
    )
