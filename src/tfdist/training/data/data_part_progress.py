"""Count how many batches of each part of the data are taken, also by workers that are lost.

Each asynchronous worker reads its own part of the data. A worker that comes back begins its part again, and
leaves out what was taken of it. If it does not come back, another worker reads the rest.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import asked_when_sent
from tfdist.coordination.end_stalled_workers import WorkerExecutions
from tfdist.training.data.sent_execution import ORDER_SPEC, Execution, Sending

NO_PART = -1
_SECONDS_BETWEEN_LOOKS = 0.1


class PartsOfData:
    """Which worker reads which part of the data, and how many batches of each part are taken.

    TensorFlow's coordinator has a thread for each worker. This thread sends the worker its executions, waits
    for each result, and makes the worker's iterator again when the worker has come back. The methods whose
    names begin with `for_` are called there.
    """

    def __init__(self, workers: int, executions: WorkerExecutions) -> None:
        """Begin with the first batch of each part; `executions` counts the time of each sending."""
        self._lock, self._executions = threading.Lock(), executions
        self._workers = workers
        self._example = tf.zeros(ORDER_SPEC.shape, ORDER_SPEC.dtype)
        self._running: list[tuple[Execution, Sending] | None] = []
        self.begin()

    def begin(self, taken: Sequence[int] = ()) -> None:
        """Begin the data, in which each worker reads its own part, from a number of batches on."""
        with self._lock:
            self._taken = list(taken) or [0] * self._workers
            self._ended: set[int] = set()
            self._read_by_worker = list(range(self._workers))
            for execution, sending in filter(None, self._running):
                execution.forget(sending)
            self._running = [None] * self._workers

    def taken(self) -> list[int]:
        """Return how many batches of each part are taken, by the executions that have ended."""
        with self._lock:
            for worker, running in enumerate(self._running):
                if running is not None and running[0].is_over(running[1]):
                    self._count(worker)
            return list(self._taken)

    def end(self, worker: int) -> None:
        """Note that the part that a worker reads has ended."""
        self._ended.add(self._read_by_worker[worker])

    def unfinished(self) -> list[int]:
        """Return the parts that have not ended, as far as is known."""
        return [part for part in range(self._workers) if part not in self._ended]

    def hand_over(self, readers: Collection[int]) -> list[int]:
        """Assign unfinished parts to other workers, one each, and nothing to all the rest; return who reads.

        All workers that still read are lost.
        """
        with self._lock:
            for worker in range(self._workers):
                self._count(worker)
            given = dict(zip(sorted(readers), self.unfinished(), strict=False))
            self._read_by_worker = [given.get(worker, NO_PART) for worker in range(self._workers)]
            return list(given)

    def schedule(
        self, execution: Execution, send: Callable[[Any], Any], has_failed: Callable[[], bool]
    ) -> None:
        """Schedule an execution.

        After a step has failed, the coordinator waits in `send` until the workers' threads have ended what
        they do. So this thread holds no lock there, and those threads do not wait for it.

        Args:
            execution: The execution.
            send: Passes its order to the coordinator, and returns the answer.
            has_failed: Returns whether a step has failed.
        """
        is_scheduled = threading.Event()

        def order(worker: int) -> tf.Tensor:
            # Until this execution has what the coordinator returns, which may be later.
            while not (is_scheduled.wait(_SECONDS_BETWEEN_LOOKS) or has_failed()):
                pass
            if execution.closure is None:
                raise tf.errors.CancelledError(None, None, "this execution was not scheduled")
            number, done = self.for_execution(execution, worker)
            return tf.constant([execution.wanted, number, done, execution.call], tf.int64)

        try:
            execution.closure = send(asked_when_sent(self._example, order))
        finally:
            is_scheduled.set()

    def for_execution(self, execution: Execution, worker: int) -> tuple[int, int]:
        """Note that an execution is sent to a worker; return its number, and how many steps are done."""
        with self._lock:
            self._count(worker)  # the one before has ended: with its result, or with the worker
            sending = execution.send(self._executions.begin(worker), self._read_by_worker[worker])
            self._running[worker] = execution, sending
            return sending.number, sending.done_before

    def for_iterator(self, worker: int) -> tuple[int, int]:
        """Return the part that a worker's new iterator reads, and how many of its batches it leaves out."""
        with self._lock:
            self._count(worker)
            part = self._read_by_worker[worker]
            skip = 0 if part == NO_PART else self._taken[part]
            if skip:
                self._executions.expect_long_reading(worker)
            return part, skip

    def _count(self, worker: int) -> None:
        """Count what a worker has taken in its last execution, which has ended."""
        running = self._running[worker]
        if running is not None:
            execution, sending = running
            read = execution.done_after(sending) - sending.done_before
            if sending.part != NO_PART:
                self._taken[sending.part] += read
            self._running[worker] = None
