"""Distribute data to the replicas, each example to one of them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist._utils.tf_private import serialized, worker_count
from tfdist.errors import DataError
from tfdist.training.data_digest import check_same_data
from tfdist.training.data_read_by_chief import ChiefData, chief_must_read
from tfdist.training.dataset_checks import check_order, copied_from_python
from tfdist.training.no_autotune import untuned
from tfdist.training.same_call import check_same_call
from tfdist.training.split_sparse_batches import contains_sparse, replica_batches
from tfdist.training.worker_index_in_graph import worker_index

__all__ = ["Data", "distribute", "distribute_to_workers", "known_steps"]

# TensorFlow ships no types. The type that is meant:
Data: TypeAlias = Any  # tf.data.Dataset | Callable[[tf.distribute.InputContext], tf.data.Dataset]


def known_steps(data: Data, wanted: str) -> int | None:
    """Return the number of batches of a data set, None if unknown; refuse a data set that never ends."""
    if not isinstance(data, tf.data.Dataset):
        return None
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise DataError("the data set", "never ends", remedy=f"Pass {wanted}, or leave out repeat()")
    return count if count >= 0 else None


def distribute(data: Data, strategy: tf.distribute.Strategy) -> Any:
    """Distribute a data set over replicas that work in step.

    Args:
        data: A data set of global batches, which TensorFlow splits among the replicas; or a function that
            takes an input context and returns the replica batches of one input pipeline's own part of the
            data.
        strategy: The strategy of the replicas.
    """
    if isinstance(data, tf.data.Dataset):
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and worker_count(strategy) > 1:
            check_order(data)
            check_same_data(data, strategy)
        data = untuned(copied_from_python(data))
        if strategy.num_replicas_in_sync > 1 and contains_sparse(data):
            return strategy.distribute_datasets_from_function(replica_batches(data))
        return strategy.experimental_distribute_dataset(_sharded_by_example(data))
    check_same_call(strategy)
    if isinstance(data, tf.distribute.DistributedDataset):
        return data
    return strategy.distribute_datasets_from_function(_checked(data))


def distribute_to_workers(
    data: Data,
    strategy: tf.distribute.Strategy,
    coordinator: Any,
    workers: int,
    skips: Sequence[int] = (),
) -> tuple[Any, Any]:
    """Distribute a data set over asynchronous workers; return it and its element spec.

    TensorFlow gives all workers the same data set and the same input context. tfdist gives each worker its
    own part, which the worker's index selects inside the graph. What workers cannot read is `ChiefData`.
    Each worker leaves out as many of its first batches as `skips` says, which is all zeros if empty.
    """
    skips = [skip * strategy.num_replicas_in_sync for skip in skips or [0] * workers]
    if isinstance(data, tf.data.Dataset) and chief_must_read(data):
        data = ChiefData.of(data)
    if isinstance(data, ChiefData):
        if strategy.num_replicas_in_sync > 1:
            problem = "must be read by the chief, but workers have several devices, and would need one each"
            remedy = "Pass a function of a tf.distribute.InputContext that makes a data set on each worker"
            raise DataError("the data set", problem, remedy=remedy)
        return data, data.dataset.element_spec
    make_own, spec = (_rebuilt if isinstance(data, tf.data.Dataset) else _chosen)(data, skips)
    if strategy.num_replicas_in_sync == 1:  # the call for several replicas adds threads and buffers
        return coordinator.create_per_worker_dataset(make_own), spec
    shared = lambda: strategy.distribute_datasets_from_function(lambda _: make_own())  # noqa: E731
    return coordinator.create_per_worker_dataset(shared), spec


def _chosen(data: Any, skips: Sequence[int]) -> tuple[Callable[[], tf.data.Dataset], Any]:
    """Return a function that calls the user's function with the running worker's index, and a spec."""
    make = _checked(data)
    contexts = [tf.distribute.InputContext(len(skips), index, 1) for index in range(len(skips))]
    first = make(contexts[0])
    spec, options = first.element_spec, first.options()
    parts = list(zip(contexts, skips, strict=True))  # here: AutoGraph of TensorFlow 2.12 knows no strict

    def make_own() -> tf.data.Dataset:
        # All workers run the same graph, and the user's function may need the index as a Python number
        # (to slice a list of files). So the graph contains every worker's data set, and makes one of them.
        index = worker_index()
        makers = [
            lambda context=context, skip=skip: tf.data.experimental.to_variant(
                _without_first(make(context), skip)
            )
            for context, skip in parts
        ]
        variant = tf.switch_case(tf.cast(index, tf.int32), makers)
        return tf.data.experimental.from_variant(variant, spec).with_options(options)

    return make_own, spec


def _rebuilt(dataset: tf.data.Dataset, skips: Sequence[int]) -> tuple[Callable[[], tf.data.Dataset], Any]:
    """Return a function that rebuilds a data set on a worker and takes the worker's batches, and a spec."""
    if len(skips) > 1:
        check_order(dataset)
    dataset = untuned(dataset)
    spec, options = dataset.element_spec, dataset.options()
    # A data set exists only in the process that made it, but its graph can be sent. The workers get the graph
    # as an argument: TensorFlow would copy a constant with every function, and build it during optimization.
    graph = serialized(dataset)

    def make_own() -> tf.data.Dataset:
        index = worker_index()
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        own = tf.data.experimental.from_variant(variant, spec).shard(len(skips), index)
        return _without_first(own, tf.gather(skips, index) if any(skips) else 0).with_options(options)

    return make_own, spec


def _without_first(dataset: tf.data.Dataset, skip: Any) -> tf.data.Dataset:
    return dataset if isinstance(skip, int) and not skip else dataset.skip(tf.cast(skip, tf.int64))


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
        return untuned(copied_from_python(dataset))

    return made


def _sharded_by_example(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set that TensorFlow splits by example, not by file: right for any number of files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    policies = tf.data.experimental.AutoShardPolicy
    if dataset.options().experimental_distribute.auto_shard_policy == policies.AUTO:
        return dataset.with_options(options)
    return dataset
