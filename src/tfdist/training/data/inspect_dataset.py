"""Check that several workers can each run a data set for themselves, and which orders its passes have.

Without a fixed order, workers would lose some examples and repeat others. A data set may also be too large to
send to the workers.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import (
    batch_numbers,
    dataset_inputs,
    dataset_tensors,
    is_deterministic,
    is_reshuffled,
    shuffle_seeds,
    traced_functions,
)
from tfdist.errors import DataError

# The places of an operation's two seeds among its inputs. If both are 0, each process draws its own seeds.
_SEED_INPUTS = {
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}

# Operations that draw numbers; with two seeds of 0, other ones in each process.
RANDOM_OPERATIONS = (
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle",
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
)  # fmt: skip
# Operations of tf.random.Generator, whose state continues from one pass over the data to the next.
OPERATIONS_OF_RANDOM_GENERATORS = (
    "RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulStandardNormalV2",
)  # fmt: skip
# Data sets, by the names of their classes, whose functions say which examples there are.
_CHOOSING = ("FilterDataset", "TakeWhileDataset")
_OF_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
# The data sets that begin those they are made of exactly once, when they begin themselves.
_BEGIN_ONCE = (
    "AssertCardinality", "Batch", "Enumerate", "Filter", "FlatMap", "Interleave", "Map", "Options",
    "PaddedBatch", "ParallelBatch", "ParallelInterleave", "ParallelMap", "Prefetch", "Shard", "Shuffle",
    "Skip", "Take", "Unbatch", "Zip",
)  # fmt: skip
# Data sets, by the names of their classes: those that make batches of examples, and those that keep batches.
_BATCHING = ("BatchDataset", "PaddedBatchDataset", "ParallelBatchDataset")
_KEEPING_BATCHES = (
    "AssertCardinalityDataset",
    "CacheDataset",
    "OptionsDataset",
    "PrefetchDataset",
    "RepeatDataset",
    "ShardDataset",
    "ShuffleDataset",
    "SkipDataset",
    "TakeDataset",
)
_HANDLES = (tf.resource, tf.variant)
# A protocol buffer holds 2 GiB. TensorFlow serializes a larger data set as an empty string, without an error.
MOST_BYTES = 2**31 - 2**20


def check_order(
    dataset: tf.data.Dataset,
    harm: str = "workers would lose some examples and repeat others",
    *,
    instead: str = ", or pass a function of the input context that shards first",
) -> None:
    """Refuse a data set without a fixed order, from which workers would take parts that overlap.

    The texts are those of the error: what the order would do, and what else a user may do.
    """
    for part in chain_of(dataset):
        if is_shuffled_anew(part):
            problem = f"is shuffled without a seed: {harm}"
            remedy = f"Use shuffle(…, seed=…), or call keras.utils.set_random_seed(…) first{instead}"
            raise DataError("the data set", problem, remedy=remedy)
        if (0, 0) in seeds_of_choices(part):
            problem = f"chooses examples by random numbers without a seed: {harm}"
            remedy = f"Pass them a seed, or call keras.utils.set_random_seed(…) first{instead}"
            raise DataError("the data set", problem, remedy=remedy)
        if has_no_order(part):
            problem = f"has no fixed order (deterministic=False): {harm}"
            raise DataError("the data set", problem, remedy=f"Leave deterministic=False out{instead}")


def is_shuffled_anew(dataset: tf.data.Dataset) -> bool:
    """Return whether a data set itself shuffles, or its functions do, without a seed."""
    seeds = [tf.get_static_value(seed) for seed in shuffle_seeds(dataset)]
    return seeds == [0, 0] or any(_draws_anew(definition) for definition in definitions_of(dataset))


def seeds_of_choices(dataset: Any) -> list[tuple[int, int]]:
    """Return the seeds of the operations by which a data set's function chooses examples."""
    if type(dataset).__name__.strip("_") not in _CHOOSING:
        return []
    nodes = [node for definition in definitions_of(dataset) for node in definition]
    return [_seeds_of(node) for node in nodes if node.op in RANDOM_OPERATIONS]


def seeds_of_permutations(definitions: Iterable[Iterable[Any]]) -> list[tuple[int, int]]:
    """Return the seeds of the operations by which functions shuffle tensors; see `definitions_of`."""
    nodes = [node for definition in definitions for node in definition]
    return [_seeds_of(node) for node in nodes if node.op == "RandomShuffle"]


def _seeds_of(node: Any) -> tuple[int, int]:
    return node.attr["seed"].i, node.attr["seed2"].i


def size_of_shuffled(data: Any) -> int | None:
    """Return the number of batches of a data set with an order of its own in each pass; None for others."""
    if not isinstance(data, tf.data.Dataset) or not any(map(is_reshuffled, chain_of(data))):
        return None
    size = int(data.cardinality())
    return size if size > 0 else None


def has_no_order(dataset: tf.data.Dataset) -> bool:
    """Return whether a data set may yield what it computes in parallel in any order."""
    return not is_deterministic(dataset) or dataset.options().deterministic is False


def contains_python(dataset: tf.data.Dataset) -> bool:
    """Return whether a data set calls Python code, such as a generator."""
    nodes = (node.op for part in chain_of(dataset) for nodes in definitions_of(part) for node in nodes)
    return any(op in _OF_PYTHON for op in nodes)


def order_is_of_python(dataset: tf.data.Dataset) -> bool:
    """Return whether Python code alone decides what a data set yields, and nothing changes that at random.

    So all processes must read the same. They need not where examples in a fixed order are changed at random,
    by operations or by further Python code: as images are turned and cut.
    """
    changing = {*_OF_PYTHON, *RANDOM_OPERATIONS, *OPERATIONS_OF_RANDOM_GENERATORS, "ReadVariableOp"}
    is_yielded = False
    for part in chain_of(dataset):
        operations = {node.op for nodes in definitions_of(part) for node in nodes}
        if "GeneratorDataset" in operations:
            is_yielded = True
        elif operations & changing:
            return False
    return is_yielded


def is_batched_last(dataset: Any) -> bool:
    """Return whether a data set yields batches as `batch` made them: with as many rows in each tensor."""
    for part in chain_of(dataset):
        name = type(part).__name__.removeprefix("_")
        if name not in _KEEPING_BATCHES:
            return name in _BATCHING
    return False


def zipped_batches(dataset: Any) -> list[Any]:
    """Return the data sets whose batches a data set zips, if these have other sizes; else nothing."""
    for part in chain_of(dataset):
        name = type(part).__name__.removeprefix("_")
        if name == "ZipDataset":
            batched = dataset_inputs(part)
            return batched if _are_of_other_sizes(batched) else []
        if name not in _KEEPING_BATCHES:
            return []
    return []


def _are_of_other_sizes(batched: list[Any]) -> bool:
    sizes = set()
    for each in batched:
        found = [batch_numbers(part)[0] for part in chain_of(each)]
        last = next((size for size in found if size is not None), None)
        sizes.add(None if last is None else int(last))
    return len(sizes) > 1 and None not in sizes


def is_too_large_to_send(dataset: tf.data.Dataset) -> bool:
    """Return whether a data set holds more in memory than TensorFlow can send."""
    return sum(_nbytes(part) for part in chain_of(dataset)) > MOST_BYTES


def _nbytes(dataset: Any) -> int:
    """Return the bytes of the arrays that a data set slices, and of those that its functions use."""
    held = dataset_tensors(dataset)
    for function in traced_functions(dataset):
        held += [captured for captured in function.captured_inputs if captured.dtype not in _HANDLES]
    return sum(tensor.dtype.size * (tensor.shape.num_elements() or 0) for tensor in held)


def chain_of(dataset: Any) -> Iterator[Any]:
    """Yield a data set and all data sets that it is made from, each once."""
    left, seen = [dataset], {}
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # which keeps it, and so its id
        yield each
        left.extend(reversed(dataset_inputs(each)))


def definitions_of(dataset: Any) -> Iterator[list[Any]]:
    """Yield the nodes of each function that a data set calls, and of the functions that these call."""
    for function in traced_functions(dataset):
        graph = function.graph.as_graph_def()
        yield list(graph.node)
        yield from (list(definition.node_def) for definition in graph.library.function)


def _draws_anew(nodes: list[Any]) -> bool:
    """Return whether a function makes a data set that is shuffled without a seed."""
    constants = {
        node.name: tf.make_ndarray(node.attr["value"].tensor) for node in nodes if node.op == "Const"
    }
    for node in nodes:
        places = _SEED_INPUTS.get(node.op, ())
        seeds = [constants.get(node.input[place].partition(":")[0]) for place in places]
        if seeds and all(seed is not None and seed == 0 for seed in seeds):
            return True
    return False


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
