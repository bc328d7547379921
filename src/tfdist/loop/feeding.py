"""Hand the data out to the replicas, each example to one of them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist.errors import DataError
from tfdist.loop.sending import check_order, check_size
from tfdist.loop.untuned import untuned
from tfdist.loop.workers import worker_index

__all__ = ["Data", "distribute", "distribute_to_workers", "known_steps"]

# TensorFlow ships no types; what is meant is:
Data: TypeAlias = Any  # tf.data.Dataset | Callable[[tf.distribute.InputContext], tf.data.Dataset]


def known_steps(data: Data, wanted: str) -> int | None:
    """Count the batches of a data set where that can be told; refuse one that never ends."""
    if not isinstance(data, tf.data.Dataset):
        return None
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise DataError("the data set", "never ends", remedy=f"Say {wanted}, or leave out repeat()")
    return count if count >= 0 else None


def distribute(data: Data, strategy: tf.distribute.Strategy) -> Any:
    """Distribute a data set over replicas that work in step.

    Args:
        data: Either a data set of global batches, which is cut up among the replicas; or a function that
            makes, for an input context, the replica batches of one input pipeline's own part of the data.
        strategy: The strategy whose replicas are fed.
    """
    if isinstance(data, tf.data.Dataset):
        if (
            isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
            and strategy.extended._num_workers > 1
        ):
            check_order(data)
        return strategy.experimental_distribute_dataset(_sharded_by_example(untuned(data)))
    if isinstance(data, tf.distribute.DistributedDataset):
        return data
    return strategy.distribute_datasets_from_function(_checked(data))


def distribute_to_workers(
    data: Data, strategy: tf.distribute.Strategy, coordinator: Any, workers: int
) -> tuple[Any, Any]:
    """Distribute a data set over workers that go each at its own pace; give it and its element spec.

    TensorFlow gives all workers the same data set and the same input context. Here each gets its own part:
    every worker's data set is in the graph, and the worker's index says which of them is made.
    """
    make_own, spec = (_rebuilt if isinstance(data, tf.data.Dataset) else _chosen)(data, workers)
    if strategy.num_replicas_in_sync == 1:  # what hands out to several has threads and buffers for each
        return coordinator.create_per_worker_dataset(make_own), spec
    shared = lambda: strategy.distribute_datasets_from_function(lambda _: make_own())  # noqa: E731
    return coordinator.create_per_worker_dataset(shared), spec


def _chosen(data: Any, workers: int) -> tuple[Callable[[], tf.data.Dataset], Any]:
    """Make a function that calls the user's own, on each worker with that worker's index."""
    make = _checked(data)
    contexts = [tf.distribute.InputContext(workers, index, 1) for index in range(workers)]
    first = make(contexts[0])
    spec, options = first.element_spec, first.options()

    def make_own() -> tf.data.Dataset:
        # The graph is one for all workers, and a function of the user's may need its index as a number
        # (to slice a list of files): so every worker's data set is in the graph, and one of them is made.
        index = worker_index()
        makers = [lambda each=each: tf.data.experimental.to_variant(make(each)) for each in contexts]
        variant = tf.switch_case(tf.cast(index, tf.int32), makers)
        return tf.data.experimental.from_variant(variant, spec).with_options(options)

    return make_own, spec


def _rebuilt(dataset: tf.data.Dataset, workers: int) -> tuple[Callable[[], tf.data.Dataset], Any]:
    """Make a function that rebuilds a data set on a worker, and takes that worker's batches of it."""
    if workers > 1:
        check_order(dataset)
    check_size(dataset)
    dataset = untuned(dataset)
    spec, options = dataset.element_spec, dataset.options()
    # A data set lives in the process that made it, but its graph can be sent. It is an argument to what the
    # workers run: a constant would be copied with every function, and built while the graph is optimized.
    graph = dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.WARN)

    def make_own() -> tf.data.Dataset:
        index = worker_index()
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        return tf.data.experimental.from_variant(variant, spec).shard(workers, index).with_options(options)

    return make_own, spec


def _checked(make: Callable[[tf.distribute.InputContext], Any]) -> Callable[..., tf.data.Dataset]:
    if not callable(make):
        raise DataError(
            "data",
            expected="a tf.data.Dataset, or a function that makes one for an input context",
            received=f"a {type(make).__name__}",
            remedy="Arrays: tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch_size)",
        )

    def made(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = make(context)
        if not isinstance(dataset, tf.data.Dataset):
            received = f"a {type(dataset).__name__}"
            raise DataError("the data function", expected="a tf.data.Dataset returned", received=received)
        return untuned(dataset)

    return made


def _sharded_by_example(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Let TensorFlow share batches out by example, not by file: that is right for any number of files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    policies = tf.data.experimental.AutoShardPolicy
    if dataset.options().experimental_distribute.auto_shard_policy == policies.AUTO:
        return dataset.with_options(options)
    return dataset
