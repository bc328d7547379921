"""Choose the batches of each execution: asynchronous workers read their own parts, or the chief sends all."""

import abc
import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.training.data.data_part_progress import PartsOfData
from tfdist.training.data.dataset_workarounds import untuned_on_devices
from tfdist.training.runners.graphs_for_workers import GraphsOfBatches, WorkerGraph
from tfdist.training.runners.place_in_data import PlaceInData

_END = object()
_READING = Activity("reading data", "at_each_step")


class Call(NamedTuple):
    """What a worker is sent for an execution: a graph, what it reads, and the number of its steps."""

    graph: Any
    batches: Any
    steps: int


class BatchesForWorkers(abc.ABC):
    """The batches of the executions of asynchronous workers.

    Attributes:
        can_be_handed_over: Whether a lost worker leaves batches that others can read.
    """

    can_be_handed_over: bool

    def __init__(self, data: Any) -> None:
        self._data = data
        self._iterator: Any = None

    @property
    def is_begun(self) -> bool:
        """Return whether the data have begun, so that the next epoch can continue in them."""
        return self._iterator is not None

    def rewind(self, data: Any = None) -> None:
        """Begin the data, or other data, before the next epoch."""
        self._data = self._data if data is None else data
        self._iterator = None

    @abc.abstractmethod
    def resume(self, place: PlaceInData, *, again: bool) -> None:
        """Do what depends on the passes that an earlier process began; it read them whole if `again`."""

    @abc.abstractmethod
    def begin(self, parts: PartsOfData, taken: Sequence[int] = ()) -> None:
        """Begin what is left of the parts of the data, where an earlier process has `taken` some batches."""

    def continue_pass(self, parts: PartsOfData) -> None:
        """Begin what other workers read of the parts of lost ones; for batches that can be handed over."""
        raise NotImplementedError

    @abc.abstractmethod
    def may_have_more(self) -> bool:
        """Return whether there may be another batch."""

    @abc.abstractmethod
    def call(self, steps: int) -> Call:
        """Return what to send for an execution of up to a number of steps."""


class BatchesReadByWorkers(BatchesForWorkers):
    """Batches of which each worker reads its own part."""

    can_be_handed_over = True

    def __init__(self, graph: WorkerGraph, data: Any) -> None:
        super().__init__(data)
        self._graph = graph

    def resume(self, place: PlaceInData, *, again: bool) -> None:
        """Continue after the passes that an earlier process began: each worker begins its data so often."""
        del again  # the data know it
        self._data.resume(place.begun - place.is_open)

    def begin(self, parts: PartsOfData, taken: Sequence[int] = ()) -> None:
        """Begin what is left of the parts, which know what was taken."""
        del taken
        with untuned_on_devices():
            self._iterator = self._data.begin(parts)

    def continue_pass(self, parts: PartsOfData) -> None:
        """Begin what other workers read of the parts of lost ones."""
        with untuned_on_devices():
            self._iterator = self._data.continue_pass(parts)

    def may_have_more(self) -> bool:
        """Return True: only the workers know when their parts end."""
        return True

    def call(self, steps: int) -> Call:
        """Return the graph, and the iterator of the worker's part."""
        return Call(self._graph.function, self._iterator, steps)


class BatchesReadByChief(BatchesForWorkers):
    """Batches that the chief reads and sends; if a worker is lost, another one gets the same batches."""

    can_be_handed_over = False  # the chief itself has all data

    def __init__(self, graphs: GraphsOfBatches, data: Any) -> None:
        super().__init__(data)
        self._graphs = graphs
        self._next: Any = _END

    def resume(self, place: PlaceInData, *, again: bool) -> None:
        """Begin the data as often as an earlier process did."""
        for _ in range(place.begun - place.is_open):
            earlier = iter(self._data.dataset)
            if again:
                collections.deque(earlier, maxlen=0)

    def begin(self, parts: PartsOfData, taken: Sequence[int] = ()) -> None:
        """Begin the data, and leave out what was taken."""
        del parts
        self._iterator = iter(self._data.dataset)
        for _ in range(sum(taken) + 1):
            with doing(_READING):
                self._next = next(self._iterator, _END)

    def may_have_more(self) -> bool:
        """Return whether there is another batch, which is read already."""
        return self._next is not _END

    def call(self, steps: int) -> Call:
        """Return the graph for the number of the batches, and the batches."""
        batches: list[Any] = []
        with doing(_READING):
            while len(batches) < steps and self._next is not _END:
                batches.append(tf.nest.flatten(self._next, expand_composites=True))
                self._next = next(self._iterator, _END)
        graph = self._graphs.of(len(batches), self._data.dataset.element_spec)
        return Call(graph, batches, len(batches))
