"""Exchange numbers between mirrored workers: their sums, or what the chief has."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import EXCHANGE, doing


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

    Numbers of up to 53 bits are exact, since they are sent as float64.
    """
    if not has_mirrored_workers(strategy):
        return list(values)
    with doing(EXCHANGE):
        chief_values = _make_broadcast(strategy, is_chief)([tf.cast(value, tf.float64) for value in values])
    local = [strategy.experimental_local_results(value)[0] for value in chief_values]
    return [
        tf.cast(received, tf.convert_to_tensor(mine).dtype)
        for received, mine in zip(local, values, strict=True)
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

    def sum_of_replicas(sent: list[tf.Tensor]) -> Any:
        context = tf.distribute.get_replica_context()
        # One replica of the chief sends values, the others zeros. (Not a product with 0: 0 times NaN is NaN.)
        speaks = tf.logical_and(tf.equal(context.replica_id_in_sync_group, 0), is_chief)
        own = [tf.where(speaks, value, tf.zeros_like(value)) for value in sent]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    return tf.function(lambda sent: strategy.run(sum_of_replicas, args=(sent,)), autograph=False)
