"""Exchange numbers between mirrored workers: their sums, or what the chief has."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import EXCHANGE, doing

_NUMBERS_AT_ONCE = 1 << 20


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Wait until all workers are here; a worker that ends while others work counts as lost."""
    if has_mirrored_workers(strategy):
        with doing(Activity("")):  # the chief may be writing large files
            sum_over_workers(strategy, 1.0)


def sum_over_workers(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Return the sum of the workers' numbers; all workers must call this function.

    They are sent as float32, which devices of every kind can exchange.
    """
    return _summing(strategy)(tf.constant(values, tf.float32))


@functools.lru_cache(maxsize=1)  # tracing takes long
def _summing(strategy: tf.distribute.Strategy) -> Any:
    def all_reduce(values: tf.Tensor) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

    def summed(values: tf.Tensor) -> Any:
        total = strategy.experimental_local_results(strategy.run(all_reduce, args=(values,)))[0]
        return total / len(strategy.extended.worker_devices)  # each replica adds its worker's value

    return tf.function(summed, autograph=False)


def take_from_chief(strategy: tf.distribute.Strategy, values: Sequence[Any], *, is_chief: bool) -> list[Any]:
    """Return the chief's values on every worker; all workers must call this function.

    Values of all types but text are exact, since their bits are sent.
    """
    if not (values and has_mirrored_workers(strategy)):
        return list(values)
    tensors = [tf.convert_to_tensor(value) for value in values]
    arrays = [np.asarray(tensor.numpy(), order="C") for tensor in tensors]
    sizes = [array.nbytes for array in arrays]
    whole = np.zeros(-(-sum(sizes) // 8), np.int64)  # a sum of these with zeros has the same bits
    ends = np.cumsum(sizes, dtype=np.int64)[:-1]
    parts = np.split(whole.view(np.uint8)[: sum(sizes)], ends)
    if is_chief:
        for part, array in zip(parts, arrays, strict=True):
            part[:] = array.reshape(-1).view(np.uint8)
    broadcast = _make_broadcast(strategy, is_chief)
    with doing(EXCHANGE):
        for begin in range(0, len(whole), _NUMBERS_AT_ONCE):
            piece = whole[begin : begin + _NUMBERS_AT_ONCE]
            piece[:] = strategy.experimental_local_results(broadcast(piece))[0]
    return [
        tf.constant(part.view(array.dtype).reshape(array.shape), tensor.dtype)
        for part, array, tensor in zip(parts, arrays, tensors, strict=True)
    ]


def take_text_from_chief(strategy: tf.distribute.Strategy, text: str, *, is_chief: bool) -> str:
    """Return the chief's text, which is not empty, on every worker; all workers must call this function."""
    mine = np.frombuffer(text.encode(), np.uint8)
    [size] = take_from_chief(strategy, [len(mine)], is_chief=is_chief)
    mine = mine if is_chief else np.zeros(int(size), np.uint8)
    [received] = take_from_chief(strategy, [tf.constant(mine)], is_chief=is_chief)
    return bytes(np.asarray(received)).decode()


@functools.lru_cache(maxsize=1)
def _make_broadcast(strategy: tf.distribute.Strategy, is_chief: bool) -> Any:
    """Return the function that takes the chief's values; it is cached, since tracing takes long."""

    def sum_of_replicas(sent: tf.Tensor) -> Any:
        context = tf.distribute.get_replica_context()
        # One replica of the chief sends values, the others zeros.
        speaks = tf.logical_and(tf.equal(context.replica_id_in_sync_group, 0), is_chief)
        own = tf.where(speaks, sent, tf.zeros_like(sent))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    return tf.function(
        lambda sent: strategy.run(sum_of_replicas, args=(sent,)),
        autograph=False,
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
