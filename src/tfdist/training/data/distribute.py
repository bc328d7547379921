"""Distribute data to the replicas, each example to one of them."""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import worker_count
from tfdist.errors import DataError
from tfdist.training.data.check_caches import check_caches
from tfdist.training.data.check_one_row_per_example import with_equal_rows, with_splittable_zips
from tfdist.training.data.check_same_data import check_same_data
from tfdist.training.data.dataset_workarounds import (
    contains_sparse,
    copied_from_python,
    replica_batches,
    untuned,
    with_placeholders,
)
from tfdist.training.data.inspect_dataset import check_order, contains_python
from tfdist.training.data.python_data_of_workers import BatchNotes, PythonDataOfWorkers
from tfdist.training.data.read_by_chief import ChiefData, chief_must_read
from tfdist.training.data.read_by_workers import WorkersData
from tfdist.training.workers.same_call import check_same_call

# TensorFlow ships no types. The type that is meant:
Data: TypeAlias = Any  # tf.data.Dataset | Callable[[tf.distribute.InputContext], tf.data.Dataset]

_log = logging.getLogger("tfdist")
_BATCHES_AHEAD = 1  # that are read while a step computes
_Policy = tf.data.experimental.AutoShardPolicy
_BY_FILE = (_Policy.FILE, _Policy.HINT)  # workers read files of their own


def known_steps(data: Data, wanted: str) -> int | None:
    """Return the number of batches of a data set, None if unknown; refuse a data set that never ends."""
    if not isinstance(data, tf.data.Dataset):
        return None
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise _never_ends("the data set", wanted)
    return count if count >= 0 else None


def check_end(distributed: Any, wanted: str) -> None:
    """Refuse distributed data that never end, where a number of steps is wanted."""
    if isinstance(distributed, tf.data.Dataset):
        never = int(distributed.cardinality()) == tf.data.INFINITE_CARDINALITY
    elif isinstance(distributed, WorkersData):
        never = distributed.is_endless
    else:
        never = is_endless(distributed)
    if never:
        raise _never_ends("the data set of the function", wanted)


def _never_ends(what: str, wanted: str) -> DataError:
    return DataError(what, "never ends", remedy=f"Pass {wanted}, or leave out repeat()")


def distribute(data: Data, strategy: tf.distribute.Strategy, *, may_copy_states: bool = True) -> Any:
    """Distribute a data set over replicas that work in step.

    Args:
        data: A data set of global batches, which TensorFlow splits among the replicas; or a function that
            takes an input context and returns the replica batches of one input pipeline's own part of the
            data.
        strategy: The strategy of the replicas.
        may_copy_states: Whether workers may take the chief's random states before each pass. They may not
            where code of other data may be drawing from them, at another place on each worker.
    """
    if isinstance(data, tf.data.Dataset):
        data, zipped, replicas = with_placeholders(data), None, strategy.num_replicas_in_sync
        if replicas > 1:
            zipped = with_splittable_zips(data, replicas)
            data = with_equal_rows(data) if zipped is None else zipped
        if is_split := has_mirrored_workers(strategy) and worker_count(strategy) > 1:
            check_order(data)
            check_caches(data, strategy)
            check_same_data(data, strategy)
        notes = BatchNotes.of(data) if is_split and _auto_shard_policy(data) not in _BY_FILE else None
        follows_chief = is_split and may_copy_states and contains_python(data)
        data = untuned(copied_from_python(data))
        if _reads_where_it_computes(strategy):
            return data.prefetch(_BATCHES_AHEAD)
        if notes is not None:
            data = notes.noting(data)
        if zipped is not None or (replicas > 1 and contains_sparse(data)):
            made = strategy.distribute_datasets_from_function(replica_batches(data))
        else:
            made = strategy.experimental_distribute_dataset(_sharded_by_example(data, is_split=is_split))
        if notes is None and not follows_chief:
            return made
        return PythonDataOfWorkers(made, notes, strategy, follows_chief=follows_chief)
    check_same_call(strategy)
    if isinstance(data, tf.distribute.DistributedDataset):
        return data
    make = _checked(data)
    if _reads_where_it_computes(strategy):
        return make(tf.distribute.InputContext()).prefetch(_BATCHES_AHEAD)
    return strategy.distribute_datasets_from_function(make)


def _reads_where_it_computes(strategy: tf.distribute.Strategy) -> bool:
    """Return whether batches need no copy to a device, for which TensorFlow makes slow iterators."""
    is_one_device = isinstance(strategy, tf.distribute.OneDeviceStrategy)
    return is_one_device and "/device:CPU:" in strategy.extended.worker_devices[0]


def is_endless(dataset: Any) -> bool:
    """Return whether distributed data never end: the graphs that TensorFlow makes then look for no end."""
    cardinality = getattr(dataset, "cardinality", None)
    return (
        cardinality is not None and not callable(cardinality) and cardinality == tf.data.INFINITE_CARDINALITY
    )


def distribute_to_workers(
    data: Data, strategy: tf.distribute.Strategy, coordinator: Any, workers: int
) -> tuple[ChiefData | WorkersData, Any]:
    """Distribute a data set over asynchronous workers; return it and its element spec.

    Each worker reads its own part. The chief reads what workers cannot read.
    """
    if isinstance(data, tf.data.Dataset):
        data = with_placeholders(data)
        if strategy.num_replicas_in_sync > 1:
            data = with_equal_rows(data)
        if chief_must_read(data):
            data = ChiefData.of(data)
    if isinstance(data, ChiefData):
        if strategy.num_replicas_in_sync > 1:
            problem = "must be read by the chief, but workers have several devices, and would need one each"
            remedy = "Read files by operations of TensorFlow, or use one device for each worker"
            raise DataError("the data set", problem, remedy=remedy)
        return data, data.dataset.element_spec
    made = data if isinstance(data, tf.data.Dataset) else _checked(data)
    distributed = WorkersData(made, strategy, coordinator, workers)
    return distributed, distributed.element_spec


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
        return untuned(copied_from_python(with_placeholders(dataset)))

    return made


def _sharded_by_example(dataset: tf.data.Dataset, *, is_split: bool) -> tf.data.Dataset:
    """Return a data set that TensorFlow splits by example, not by file: right for any number of files.

    Args:
        dataset: A data set of global batches.
        is_split: Whether several workers take their parts of it.
    """
    policy = _auto_shard_policy(dataset)
    if policy == _Policy.OFF and is_split:
        _log.warning(
            "the data set: auto_shard_policy=OFF is ignored, with which each worker would read all examples. "
            "If workers have data of their own, pass a function of a tf.distribute.InputContext"
        )
    elif policy != _Policy.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Policy.DATA
    return dataset.with_options(options)


def _auto_shard_policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy
