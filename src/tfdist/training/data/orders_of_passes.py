"""Find out whether the order of a pass over the data depends on what was read in earlier passes."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import dataset_inputs, is_reshuffled, traced_functions
from tfdist.training.data.inspect_dataset import chain_of, definitions_of

# The data sets that begin those they are made of exactly once, when they begin themselves.
_BEGIN_ONCE = (
    "AssertCardinality", "Batch", "Enumerate", "Filter", "FlatMap", "Interleave", "Map", "Options",
    "PaddedBatch", "ParallelBatch", "ParallelInterleave", "ParallelMap", "Prefetch", "Shard", "Shuffle",
    "Skip", "Take", "Unbatch", "Zip",
)  # fmt: skip


def depends_on_earlier_passes(dataset: tf.data.Dataset) -> bool:
    """Return whether the data must be read from their first pass on, to find the order of a later one.

    A shuffle draws new seeds whenever it begins. Where it begins once in each pass, beginning the data as
    often as before is enough. A cache keeps the order of the first pass, and a `repeat` begins several times.
    """
    return (
        _uses_data_in_functions(dataset)
        or any(
            _is_reshuffled(source)
            for part in chain_of(dataset)
            if _kind(part) not in _BEGIN_ONCE
            for source in dataset_inputs(part)
        )
        or any(
            "Shuffle" in node.op or node.op.startswith("RandomDataset")
            for part in chain_of(dataset)
            for node in _nodes(part)
        )
    )


def _uses_data_in_functions(dataset: tf.data.Dataset) -> bool:
    """Return whether functions of a data set use other data sets, which may begin any number of times."""
    captured = [
        value
        for part in chain_of(dataset)
        for function in traced_functions(part)
        for value in function.captured_inputs
    ]
    return any(value.dtype == tf.variant for value in captured)


def _is_reshuffled(dataset: tf.data.Dataset) -> bool:
    return any(is_reshuffled(part) or "Random" in _kind(part) for part in chain_of(dataset))


def _nodes(dataset: tf.data.Dataset) -> Iterator[Any]:
    for nodes in definitions_of(dataset):
        yield from (node for node in nodes if node.op.endswith(("Dataset", "DatasetV2", "DatasetV3")))


def _kind(dataset: tf.data.Dataset) -> str:
    """Return the name of a data set's class without what all of them have in common."""
    return type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("Dataset")
