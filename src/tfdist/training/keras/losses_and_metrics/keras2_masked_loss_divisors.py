"""Divide the masked losses of Keras 2 by the values that are not masked in the whole batch."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import masks_weighed_by

_MEANS = ("auto", "sum_over_batch_size")
_REPLACING = threading.RLock()


@contextlib.contextmanager
def masks_of_whole_batch(model: Any, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Make the masked losses of a step's replicas, traced in the block, parts of the loss of one process.

    Keras 2 itself divides by the unmasked values of a replica's own part, where there may be none.
    """
    if strategy.num_replicas_in_sync == 1:
        yield
        return
    with _REPLACING, masks_weighed_by(keras_of(model), _of_whole_batch):
        yield


def _of_whole_batch(weigh: Callable[..., Any]) -> Callable[..., Any]:
    def apply_valid_mask(losses: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
        if mask is None or reduction not in _MEANS:
            return weigh(losses, sample_weight, mask, reduction)
        mask = tf.cast(mask, losses.dtype)
        valid, examples = tf.reduce_sum(tf.cast(mask, tf.float64)), tf.cast(tf.shape(mask)[0], tf.float64)
        context = tf.distribute.get_replica_context()
        all_valid, all_examples = context.all_reduce(tf.distribute.ReduceOp.SUM, [valid, examples])
        # The mean over the replica's part counts by its examples later, so it has a share by examples.
        share = all_valid * examples / all_examples
        factor = tf.cast(tf.size(mask), tf.float64) / share
        return weigh(losses, sample_weight, mask * tf.cast(factor, mask.dtype), "sum")

    return apply_valid_mask
