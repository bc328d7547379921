"""Look at the exchange itself: what is added up, by whom, and that nobody's memory is written over."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64"]


def way(strategy: tf.distribute.Strategy, folder: Path) -> str:
    """Return the name of the cross-device operations that add tensors up."""
    del folder
    return type(strategy.extended._cross_device_ops).__name__


def sums(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Add up arrays of several types and shapes, some of them sparse, in a graph and out of it."""
    del folder
    rank = strategy.cluster_resolver.task_id
    rng = np.random.default_rng(rank)
    dense = rng.normal(size=(7, 3)).astype("float32")

    @tf.function
    def exchange(step: tf.Tensor) -> Any:
        def added_up() -> Any:
            context = tf.distribute.get_replica_context()
            rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([rank]), tf.constant([3, 2]))
            of_types = [tf.cast(tf.range(5) * rank, dtype) for dtype in DTYPES]
            first = tf.constant(dense) * tf.cast(step, tf.float32)
            return context.all_reduce("SUM", [first, rows, *of_types, tf.zeros((0, 4)), tf.constant(1.0)])

        return strategy.run(added_up)

    first = exchange(tf.constant(1))
    kept = [tf.convert_to_tensor(each) for each in first]
    second = exchange(tf.constant(2))
    mean = strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("MEAN", tf.constant(float(rank)))
    )
    return {
        "first": [np.asarray(tf.cast(each, tf.float64)).tolist() for each in kept],
        "second": np.asarray(second[0]).tolist(),
        "eager": float(strategy.reduce("SUM", tf.constant(float(rank)), axis=None)),
        "mean": float(mean),
    }
