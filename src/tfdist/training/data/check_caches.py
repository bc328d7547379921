"""Check that no two workers of one machine fill the same file with what a data set caches."""

from collections import Counter

import tensorflow as tf

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import cache_file
from tfdist.coordination.calls_between_tasks import addresses_of
from tfdist.errors import DataError
from tfdist.training.data.inspect_dataset import chain_of


def check_caches(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
    """Refuse a data set that several workers of one machine would cache in one file, which is not there yet.

    Raises:
        DataError: They would, and all but the first would fail.
    """
    readers = ("worker",) if is_asynchronous(strategy) else ("chief", "worker")
    addresses = addresses_of(strategy).items()
    hosts = Counter(address.rpartition(":")[0] for task, address in addresses if task.type in readers)
    if not hosts or max(hosts.values()) < 2:
        return
    for part in chain_of(dataset):
        name = cache_file(part)
        if name and not tf.io.gfile.exists(f"{name}.index"):
            problem = (
                f"is cached in the file {name}, which several workers of one machine would write at once"
            )
            remedy = (
                "Use cache() without a file, or pass a function of the input context that puts"
                " context.input_pipeline_id into the name"
            )
            raise DataError("the data set", problem, remedy=remedy)
