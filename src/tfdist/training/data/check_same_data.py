"""Check that all workers are about to split the same data in the same order."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.tf_private import (
    batch_numbers,
    dataset_tensors,
    repetitions,
    shuffle_seeds,
    traced_functions,
)
from tfdist.errors import DataError
from tfdist.training.data.inspect_dataset import (
    chain_of,
    definitions_of,
    seeds_of_choices,
    seeds_of_permutations,
)
from tfdist.training.workers.same_call import gathered_in_call, worker_names

_PARTS = 8  # of 16 bits
_SAMPLE = 1 << 22  # elements of an array that are compared; a part of them shows another order


def check_same_data(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
    """Refuse a data set that differs between workers; all workers must call this function.

    Raises:
        ConfigError: A worker is in another call.
        DataError: The arrays, files, seeds or constants of a worker differ from those of the first worker.
    """
    parts = np.frombuffer(digest_of(dataset), np.uint16)  # a float32 holds 16 bits exactly
    table = gathered_in_call(strategy, parts)
    differing = [index for index, row in enumerate(table) if (row != table[0]).any()]
    if differing:
        names = worker_names(strategy)
        others = " and ".join(names[index] for index in differing)
        problem = f"differs between {names[0]} and {others}: some examples would be lost and others repeated"
        remedy = (
            "Call keras.utils.set_random_seed(…) before anything is shuffled, or pass a function of the input"
            " context that makes each worker's own part"
        )
        raise DataError("the data set", problem, remedy=remedy)


def digest_of(dataset: tf.data.Dataset) -> bytes:
    """Return a digest of what a data set is made of: arrays, files, seeds, and constants of its functions.

    The digest is the same in all processes that run the same program on the same data. It leaves out the
    names of functions, which count what a process has made before.
    """
    digest = hashlib.blake2b(digest_size=2 * _PARTS)
    for part in _parts(dataset):
        digest.update(part)
    return digest.digest()


def _parts(dataset: tf.data.Dataset) -> Iterator[bytes]:
    for node in chain_of(dataset):
        yield type(node).__name__.encode()
        held = [*shuffle_seeds(node), *dataset_tensors(node), *batch_numbers(node), repetitions(node)]
        for function in traced_functions(node):
            held += list(function.captured_inputs)
        for value in held:
            yield from _of_value(value)
        # Keras shuffles the rows of arrays by such an operation.
        definitions = list(definitions_of(node))
        seeds = sorted(seeds_of_choices(node)) + sorted(seeds_of_permutations(definitions))
        yield from (f"{pair}".encode() for pair in seeds)
        # TensorFlow lists the functions that others call, such as branches, in another order in each process.
        yield from sorted(b"".join(_constants(nodes)) for nodes in definitions)


def _constants(nodes: list[Any]) -> Iterator[bytes]:
    for operation in nodes:
        if operation.op == "Const":
            yield operation.attr["value"].tensor.SerializeToString(deterministic=True)


def _of_value(value: Any) -> Iterator[bytes]:
    if value is None or not tf.is_tensor(value) or value.dtype in (tf.resource, tf.variant):
        return
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        yield f"{value.dtype.name} {tuple(value.shape)}".encode()
        flat = np.asarray(value.numpy()).reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)]
        yield b"\0".join(map(bytes, sample)) if value.dtype == tf.string else sample.tobytes()
