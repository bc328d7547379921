"""Refuse a data set that several workers cannot run each for itself.

They would find another order each, and lose and repeat examples; or it is too large to be sent to them.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.errors import DataError

__all__ = ["check_order", "check_size"]

# Where an operation has its two seeds among its inputs. Zeros: drawn anew by each process.
_SEED_INPUTS = {
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}

_HANDLES = (tf.resource, tf.variant)
# A protocol buffer holds 2 GiB. Beyond, TensorFlow makes an empty text of a data set, and says nothing.
_MOST_BYTES = 2**31 - 2**20


def check_order(dataset: tf.data.Dataset) -> None:
    """Refuse a data set of which workers that run it each for itself would take parts that overlap."""
    for each in _chain(dataset):
        seeds = [tf.get_static_value(getattr(each, name, None)) for name in ("_seed", "_seed2")]
        if seeds == [0, 0] or any(_draws_anew(definition) for definition in _definitions(each)):
            problem = "is shuffled without a seed: workers would lose some examples and repeat others"
            remedy = (
                "Say shuffle(…, seed=…), or first tf.keras.utils.set_random_seed(…), or give a function of "
                "the input context that shards before it shuffles"
            )
            raise DataError("the data set", problem, remedy=remedy)
        is_loose = getattr(each, "_deterministic", None) in ("false", False)
        if is_loose or each.options().deterministic is False:
            problem = (
                "has no fixed order (deterministic=False): workers would lose examples and repeat others"
            )
            remedy = "Leave that out, or give a function of the input context that shards first"
            raise DataError("the data set", problem, remedy=remedy)


def check_size(dataset: tf.data.Dataset) -> None:
    """Refuse a data set that holds more in memory than can be sent."""
    size = sum(_nbytes(each) for each in _chain(dataset))
    if size > _MOST_BYTES:
        problem = f"holds {size / 1e9:.1f} GB in memory, and at most 2 GB can be sent to the workers"
        remedy = "Give a function of the input context, which opens the files on each worker"
        raise DataError("the data set", problem, remedy=remedy)


def _nbytes(dataset: Any) -> int:
    """Count what a data set holds itself: the arrays that it slices, and those that its functions use."""
    held = [*(getattr(dataset, "_tensors", None) or ())]
    for function in dataset._functions():
        held += [each for each in function.function.captured_inputs if each.dtype not in _HANDLES]
    return sum(each.dtype.size * (each.shape.num_elements() or 0) for each in held)


def _chain(dataset: Any) -> Iterator[Any]:
    """Give a data set and all that it is made of."""
    yield dataset
    for each in dataset._inputs():
        yield from _chain(each)


def _definitions(dataset: Any) -> Iterator[list[Any]]:
    """Give the nodes of each function that a data set calls, and of those that these call."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        yield list(graph.node)
        yield from (list(each.node_def) for each in graph.library.function)


def _draws_anew(nodes: list[Any]) -> bool:
    """Say whether a data set that is made in a function is shuffled without a seed."""
    constants = {
        node.name: tf.make_ndarray(node.attr["value"].tensor) for node in nodes if node.op == "Const"
    }
    for node in nodes:
        places = _SEED_INPUTS.get(node.op, ())
        seeds = [constants.get(node.input[place].partition(":")[0]) for place in places]
        if seeds and all(seed is not None and seed == 0 for seed in seeds):
            return True
    return False
