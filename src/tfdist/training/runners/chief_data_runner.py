"""Run the steps of an epoch on asynchronous workers, with batches that the chief reads and sends to them."""

import collections
from typing import Any

import tensorflow as tf

from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.training.data.read_by_chief import ChiefData
from tfdist.training.runners.coordinated_runner import CoordinatedRunner
from tfdist.training.runners.graphs_for_workers import GraphsOfBatches
from tfdist.training.runners.place_in_data import PlaceInData

_END = object()
_READING = Activity("reading data", "at_each_step")


class ChiefDataRunner(CoordinatedRunner):
    """A runner that gives each execution its batches.

    If a worker is lost, TensorFlow gives its execution to another worker, with the same batches.
    """

    def __init__(self, graphs: GraphsOfBatches, dataset: ChiefData, *args: Any, **kwargs: Any) -> None:
        super().__init__(graphs, dataset, *args, **kwargs)
        self._next: Any = _END

    def resume(self, place: PlaceInData, *, again: bool) -> None:
        """Continue in the data at a place where an earlier process was; the chief begins them as often."""
        for _ in range(place.begun - place.is_open):
            earlier = iter(self._dataset.dataset)
            if again:
                collections.deque(earlier, maxlen=0)
        super().resume(place, again=again)

    def _begin_data(self) -> None:
        skipped = self._note_begun()
        self._iterator = iter(self._dataset.dataset)
        for _ in range(sum(skipped)):
            with doing(_READING):
                next(self._iterator, _END)
        with doing(_READING):
            self._next = next(self._iterator, _END)

    def _has_room(self) -> bool:
        return self._next is not _END and super()._has_room()

    def _schedule(self, wanted: int) -> int:
        batches: list[Any] = []
        with doing(_READING):
            while len(batches) < wanted and self._next is not _END:
                batches.append(tf.nest.flatten(self._next, expand_composites=True))
                self._next = next(self._iterator, _END)
        graph = self._graph.of(len(batches), self._dataset.dataset.element_spec)
        self._send(graph, batches, len(batches))
        return len(batches)

    def _take_over(self) -> bool:
        return False  # the chief itself has all data
