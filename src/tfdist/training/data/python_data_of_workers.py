"""Data with Python code, which each mirrored worker runs whole to take its part of each batch.

The workers must find the same batches. What a generator yields shows only when it is read, so the workers
compare what they have read.
"""

import collections
import logging
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.tf_private import worker_count, worker_number
from tfdist.errors import DataError
from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.strategies.share_random_state import share_random_state
from tfdist.training.data.inspect_dataset import chain_of, order_is_of_python
from tfdist.training.workers.exchange_numbers import sum_over_workers
from tfdist.training.workers.same_call import worker_names

_log = logging.getLogger("tfdist")
_REMEDY = (
    "What its Python code draws at random must be seeded, or come from random or numpy.random after "
    "tfdist.start(), which all workers share; or pass a function of the input context that makes each "
    "worker's own part"
)
_MAY_DIFFER = (
    "the data set: differs between %s in its %s. That is right if each changes the same examples at random. "
    "If their orders differ, some examples are lost and others repeated. %s"
)
_SAMPLE = 4096  # values of a tensor that are compared
_HASHES = 1 << 20
_KEPT = 1024  # batches; few are read ahead
# Processors of different kinds round differently. Other examples make about 1 / sqrt(_SAMPLE) in a batch.
_MOST_APART, _MOST_APART_FOR_A_BATCH = 1e-4, 1e-5
# Data sets of objects that yield their examples by index, in an order that all workers share.
_INDEXED: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()


def note_as_indexed(dataset: tf.data.Dataset) -> None:
    """Note that a data set is of an object with numbered examples, such as a PyDataset or a DataLoader."""
    _INDEXED.add(dataset)


class PythonDataOfWorkers:
    """A distributed data set with Python code, whose batches mirrored workers compare.

    Before each pass over it, all workers take the chief's random states. A PyDataset is shuffled by Python's
    generator when a pass begins, and code of the user's may draw from NumPy's. What only one worker has
    drawn since the last pass, as in a callback of the chief, would otherwise make it split another order of
    the data.
    """

    def __init__(
        self,
        distributed: Any,
        notes: "BatchNotes | None",
        strategy: tf.distribute.Strategy,
        *,
        follows_chief: bool,
    ) -> None:
        """Wrap a data set that was distributed with notes; None if its batches are not compared.

        Workers take the chief's random states if the data set `follows_chief`.
        """
        self._distributed, self._notes, self._strategy = distributed, notes, strategy
        self._follows_chief = follows_chief

    def __getattr__(self, name: str) -> Any:
        return getattr(self._distributed, name)

    def __iter__(self) -> Any:
        def add_up(values: Any) -> Any:
            return sum_over_workers(self._strategy, values).numpy().tolist()

        if self._follows_chief:
            share_random_state(add_up, is_chief=is_chief_of(self._strategy))
        return iter(self._distributed)

    def compare(self, taken: int) -> None:
        """Compare the first `taken` batches of this pass; all workers must call this function."""
        if self._notes is None:
            return
        names = worker_names(self._strategy)
        apart = self._apart(self._notes.total_of(taken))
        allowed = _MOST_APART + _MOST_APART_FOR_A_BATCH * taken
        others = [name for name, distance in zip(names, apart, strict=False) if distance > allowed]
        if not others:
            return
        who = f"{names[0]} and {' and '.join(others)}"
        begin = "first batch" if taken == 1 else f"first {taken} batches"
        if self._notes.decide_order:
            problem = f"differs between {who} in its {begin}: some examples would be lost and others repeated"
            raise DataError("the data set", problem, remedy=_REMEDY)
        _log.warning(_MAY_DIFFER, who, begin, _REMEDY)
        self._notes = None

    def _apart(self, total: float | None) -> Any:
        """Return how far the total of each worker is from that of the first one."""
        table = np.zeros((worker_count(self._strategy), 3))
        if total is not None:
            high = float(np.float32(total))  # workers exchange float32
            table[worker_number(self._strategy)] = [1.0, high, total - high]
        table = sum_over_workers(self._strategy, table).numpy().astype(float)
        if not table[:, 0].all():  # the notes of a worker are of another pass
            return np.zeros(len(table))
        totals = table[:, 1] + table[:, 2]
        return np.abs(totals - totals[0])


def compare_batches(dataset: Any, taken: int) -> None:
    """Compare what mirrored workers have read of distributed data in this pass, if they contain Python code.

    Raises:
        DataError: A worker has read other batches than the first worker.
    """
    if taken and isinstance(dataset, PythonDataOfWorkers):
        dataset.compare(taken)


def is_power_of_two(number: int) -> bool:
    """Return whether a number is 1, 2, 4, 8 and so on: when batches are compared before the data end."""
    return number & (number - 1) == 0


class BatchNotes:
    """Notes of the batches that this process has read: a running total of numbers that tell them apart.

    Attributes:
        decide_order: Whether batches that differ are in another order, or may be examples changed at random.
    """

    def __init__(self, *, decide_order: bool = True) -> None:
        self.decide_order = decide_order
        self._read = 0
        self._totals: collections.deque[float] = collections.deque(maxlen=_KEPT)

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> "BatchNotes | None":
        """Return notes for a data set; None if its order is known without reading it."""
        if not order_is_of_python(dataset):
            return None
        return cls(decide_order=not any(part in _INDEXED for part in chain_of(dataset)))

    def noting(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return a data set that notes each of its batches when it is read."""

        def note(state: Any, batch: Any) -> Any:
            read, before = state
            after = before + _number_of(batch)
            noted = tf.numpy_function(self._note, (read, before, after), tf.int64)
            return (tf.ensure_shape(noted, []), after), batch

        start = tf.constant(0, tf.int64), tf.constant(0.0, tf.float64)
        return dataset.scan(start, tf.autograph.experimental.do_not_convert(note))

    def _note(self, read: Any, before: Any, after: Any) -> Any:
        # An iterator that is no longer in use may still note a batch that it was reading.
        if read == 0:
            self._read, self._totals = 0, collections.deque(maxlen=_KEPT)
        if read == 0 or (read == self._read and before == self._totals[-1]):
            self._read += 1
            self._totals.append(float(after))
        return np.int64(read + 1)

    def total_of(self, count: int) -> float | None:
        """Return the total of the first batches of the last pass; None if there is no note of that."""
        place = count - self._read - 1
        return self._totals[place] if -len(self._totals) <= place < 0 else None


def _number_of(batch: Any) -> tf.Tensor:
    """Return a number that batches of other examples, or in another order, do not have."""
    parts = tf.nest.flatten(batch, expand_composites=True)
    known = [part for part in parts if tf.is_tensor(part) and part.dtype not in (tf.resource, tf.variant)]
    return tf.add_n([_number_of_tensor(part) for part in known] or [tf.constant(0.0, tf.float64)])


def _number_of_tensor(tensor: tf.Tensor) -> tf.Tensor:
    values = tf.reshape(tensor, [-1])
    values = values[:: tf.maximum(tf.size(values, tf.int64) // _SAMPLE, 1)]
    if values.dtype == tf.string:
        values = tf.strings.to_hash_bucket_fast(values, _HASHES)
    values = tf.cast(tf.math.real(values) if values.dtype.is_complex else values, tf.float64)
    values = tf.where(tf.math.is_finite(values), values, tf.zeros_like(values))
    weights = tf.cos(tf.square(tf.range(tf.cast(tf.size(values), tf.float64))))  # of no period
    return tf.math.divide_no_nan(tf.reduce_sum(weights * values), tf.reduce_sum(tf.abs(values)))
