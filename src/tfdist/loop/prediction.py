"""Predict in parallel, in the order of the data."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import DataError, TaskLost
from tfdist.loop.checks import has_own
from tfdist.loop.coordinated import CoordinatedRunner
from tfdist.loop.feeding import known_steps
from tfdist.loop.generations import is_keras_2
from tfdist.loop.lost import naming_lost_tasks
from tfdist.loop.session import Cluster, replica_spec
from tfdist.loop.shards import built_on_parts, read_by_rows
from tfdist.loop.sharing import batch_size, unpacked

__all__ = ["predict"]


def predict(model: Any, data: tf.data.Dataset, *, strategy: tf.distribute.Strategy | None = None) -> Any:
    """Predict in parallel for a data set of global batches; give the outputs in its order, on every worker.

    Args:
        model: The model, made in the strategy's scope.
        data: Batches of x, (x, y) or (x, y, sample_weight); only x is used, but for a predict_step of the
            model's own, which gets them as they are.
        strategy: The strategy; the current one where None.
    """
    if not isinstance(data, tf.data.Dataset):
        remedy = "A function's data have no order that the predictions could be in"
        raise DataError("predict", expected="a tf.data.Dataset", received=type(data).__name__, remedy=remedy)
    known_steps(data, "predict")
    strategy = strategy or tf.distribute.get_strategy()
    with naming_lost_tasks("predict", strategy):
        parts = _predicted(model, data, Cluster(strategy))
    if not parts:
        raise DataError("the data", "hold no batch")
    # A worker that was lost and came back predicts its part anew.
    numbers, order = np.unique(np.concatenate([numbers for numbers, _ in parts]), return_index=True)
    if numbers[-1] + 1 != len(numbers):
        problem = f"lost a worker and with it {numbers[-1] + 1 - len(numbers)} predictions"
        raise TaskLost("predict", problem, remedy="Predict again")
    return tf.nest.map_structure(
        lambda *values: np.concatenate(values)[order], *[values for _, values in parts]
    )


def _predicted(model: Any, data: tf.data.Dataset, cluster: Cluster) -> list[Any]:
    """Give the examples' numbers and outputs, in the order in which they come."""
    strategy = cluster.strategy
    is_own = has_own(model, "predict_step")
    dataset, spec = cluster.distribute(_numbered(data, whole=is_own))
    one = replica_spec(spec)
    if not is_keras_2(model):
        if not model.built:
            with strategy.scope(), built_on_parts(getattr(model, "optimizer", None)):
                model._symbolic_build(data_batch=one[1] if is_own else (one[1],))
        read_by_rows(model.variables)

    def outputs(batch: Any) -> tuple[tf.Tensor, Any]:
        return batch[0], model.predict_step(batch[1]) if is_own else model(batch[1], training=False)

    if cluster.coordinator is None:
        return _predicted_in_step(strategy, dataset, outputs)
    return _predicted_by_workers(cluster, dataset, one, outputs)


def _numbered(dataset: tf.data.Dataset, *, whole: bool) -> tf.data.Dataset:
    """Number the examples, so that their order can be found again however they were handed out.

    Where they are not wanted whole, their inputs alone are kept.
    """

    def number(start: tf.Tensor, data: Any) -> tuple[tf.Tensor, Any]:
        x, _, _ = unpacked(data)
        end = start + tf.cast(batch_size(x), tf.int64)
        return end, (tf.range(start, end), data if whole else x)

    return dataset.scan(tf.constant(0, tf.int64), number)


def _predicted_in_step(strategy: tf.distribute.Strategy, dataset: Any, outputs: Any) -> list[Any]:
    def step(batch: Any) -> Any:
        # The structure may hold values of all replicas, or, where there is one, its tensors.
        return tf.nest.map_structure(
            lambda value: strategy.gather(value, axis=0), strategy.run(outputs, args=(batch,))
        )

    run = tf.function(step, autograph=False, reduce_retracing=True)
    return [tf.nest.map_structure(lambda value: value.numpy(), run(batch)) for batch in dataset]


def _predicted_by_workers(cluster: Cluster, dataset: Any, spec: Any, outputs: Any) -> list[Any]:
    def nothing() -> Any:
        return tf.nest.map_structure(
            lambda part: tf.zeros([0, *(size or 0 for size in part.shape[1:])], part.dtype), spec
        )

    def execution(iterator: Any, steps: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
        del steps  # one batch at a time: their sizes differ
        batch = iterator.get_next_as_optional()
        has_value = batch.has_value()
        found = tf.cond(has_value, batch.get_value, nothing)
        given = cluster.strategy.run(outputs, args=(found,))
        return tf.cast(has_value, tf.int32), given, tf.zeros([], tf.float64)  # nobody asks how long it waits

    runner = CoordinatedRunner(execution, dataset, cluster.coordinator, cluster.workers)
    return [added for _, added in runner.parts(None, 1)]
