"""Check that another process can continue in the data where this one was: in the same order of batches."""

import logging
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import is_reshuffled
from tfdist.errors import DataError
from tfdist.training.data.check_same_data import digest_of
from tfdist.training.data.distribute import Data
from tfdist.training.data.inspect_dataset import (
    OPERATIONS_OF_RANDOM_GENERATORS,
    RANDOM_OPERATIONS,
    chain_of,
    check_order,
    contains_python,
    definitions_of,
    depends_on_earlier_passes,
)

_log = logging.getLogger("tfdist")


class ResumableData:
    """The training data of a call of `fit`, as far as a checkpoint has to know them.

    Attributes:
        data: The data to train on.
        is_function: Whether a function makes the part of each input pipeline.
        reads_again: Whether the order of a pass depends on what was read in the passes before it.
    """

    def __init__(self, data: Data, validation_data: Data | None) -> None:
        """Check the data, or a function that makes them when it is called.

        Raises:
            DataError: The order of the batches differs in each process.
        """
        self.data = data
        self.reads_again, self._seen = False, None
        self._make = data
        self.is_function = not isinstance(data, tf.data.Dataset)
        if isinstance(data, tf.distribute.DistributedDataset):
            remedy = "Pass the data set itself, or a function of the input context"
            raise DataError("x", "is distributed already: its batches cannot be left out", remedy=remedy)
        if isinstance(data, tf.data.Dataset):
            self._check(data)
            _refuse_shared_shuffle(data, validation_data)
        else:
            self.data = self._checked

    @property
    def identity(self) -> dict[str, Any]:
        """Return what tells these data from others; of a function, the data of this process."""
        if self._seen is None:
            return {}
        return {
            "the data": digest_of(self._seen).hex(),
            "the batch": repr(self._seen.element_spec)[:300],
            "the number of batches": int(self._seen.cardinality()),
        }

    def _checked(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        made = self._make(context)
        if isinstance(made, tf.data.Dataset) and self._seen is None:
            self._check(made)
        return made

    def _check(self, dataset: tf.data.Dataset) -> None:
        self._seen = dataset
        check_order(dataset, "a resumed run would lose and repeat examples", instead="")
        has_python = contains_python(dataset)
        self.reads_again = has_python or depends_on_earlier_passes(dataset)
        if has_python:
            _log.warning(
                "fit: the data contain Python code (a generator, a PyDataset, a py_function). A resumed run "
                "has the same batches only if that code yields the same again in a new process"
            )
        if any(_draws_differently(part) for part in chain_of(dataset)):
            _log.warning(
                "fit: functions of the data set draw random numbers without a seed, in parallel or from a "
                "Generator. A resumed run has the same examples in the same order, but other numbers"
            )


def _refuse_shared_shuffle(data: tf.data.Dataset, validation_data: Data | None) -> None:
    """Refuse training and validation data of one shuffle, whose order depends on how both take turns."""
    if not isinstance(validation_data, tf.data.Dataset):
        return
    ours = {id(part) for part in chain_of(data) if is_reshuffled(part)}
    if any(id(part) in ours for part in chain_of(validation_data)):
        problem = "is made from the same shuffle as the training data, whose order each evaluation changes"
        remedy = "Pass reshuffle_each_iteration=False to it, or shuffle the training data only"
        raise DataError("validation_data", problem, remedy=remedy)


def _draws_differently(dataset: tf.data.Dataset) -> bool:
    """Return whether functions of a data set draw numbers that another process does not draw again."""
    is_parallel = "Parallel" in type(dataset).__name__
    for nodes in definitions_of(dataset):
        for node in nodes:
            if node.op in OPERATIONS_OF_RANDOM_GENERATORS:
                return True
            is_unseeded = not node.attr["seed"].i and not node.attr["seed2"].i
            if node.op in RANDOM_OPERATIONS and (is_parallel or is_unseeded):
                return True
    return False
