"""Wait for the answers of asynchronous workers to the executions that they were given."""

import time
from collections import deque
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.tf_private import has_answered, wait_for_answer
from tfdist.cluster.config import Task
from tfdist.coordination.end_stalled_workers import WorkerExecutions, end_stalled_worker
from tfdist.coordination.stall_watch import timeout_in_force
from tfdist.training.data.sent_execution import Execution
from tfdist.training.error_messages.lost_task_errors import is_lost_worker, named, refusing_tasks

_SECONDS_BEFORE_ASKING_AGAIN = 0.01
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_COPY = 0.0005
_SECONDS_BETWEEN_SERVER_CHECKS = 5.0
_TIMES_THE_SLOWEST = 5
_MOST_COUNTED_AT_ONCE = 5.0  # the whole cluster may have been stopped for a while
_FOR_EVER = float("inf")


class Answer(NamedTuple):
    """The answer to an execution.

    Attributes:
        wanted: The steps that were scheduled.
        worker: The index of the worker that answers.
        ran: The steps that were applied, also by a worker that was lost.
        given: The result of its steps.
        waited: The seconds that the steps have waited for data.
    """

    wanted: int
    worker: int
    ran: int
    given: Any
    waited: float


class ScheduledExecutions:
    """The executions that the coordinator was given, and that no worker has answered yet.

    Attributes:
        seconds_to_come_back: How long a lost worker may take to come back, in which nobody asks for it.
    """

    seconds_to_come_back = 120.0

    def __init__(self, strategy: tf.distribute.Strategy, executions: WorkerExecutions) -> None:
        """Begin with none; note in `executions` how long each one takes."""
        self._strategy, self._executions = strategy, executions
        self._queue: deque[Execution] = deque()
        self._slowest = 0.0  # seconds of the slowest answer

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._queue)

    @property
    def workers(self) -> set[int]:
        """Return the workers that have them."""
        return {execution.worker for execution in self._queue if execution.sendings}

    def add(self, execution: Execution) -> None:
        """Add one that was just scheduled."""
        self._queue.append(execution)

    def clear(self) -> None:
        """Forget them."""
        self._queue.clear()

    def wait(self) -> Execution | None:
        """Wait for an answer, and return its execution; return None after a very long wait.

        Raises:
            tf.errors.UnavailableError: A parameter server is gone.
        """
        seen_at = checked = time.monotonic()
        waited = 0.0
        # Before the first answer, the time that an execution takes is unknown.
        patience = _FOR_EVER
        if self._slowest:
            patience = max(self.seconds_to_come_back, _TIMES_THE_SLOWEST * self._slowest)
        while waited < patience:
            now = time.monotonic()
            waited, seen_at = waited + min(now - seen_at, _MOST_COUNTED_AT_ONCE), now
            for execution in self._queue:
                if has_answered(execution.closure):
                    self._slowest = max(self._slowest, waited)
                    return execution
            self._end_stuck_workers()
            if time.monotonic() - checked > _SECONDS_BETWEEN_SERVER_CHECKS:
                self._check_servers()
                checked = time.monotonic()
            if wait_for_answer(self._queue[0].closure, _SECONDS_BETWEEN_LOOKS):
                time.sleep(_SECONDS_TO_COPY)
        return None

    def fetch(self, execution: Execution) -> Answer:
        """Return the answer to an execution, which is no longer one of these then."""
        self._queue.remove(execution)
        began = time.monotonic()
        while True:
            try:
                ran, given, waited = execution.fetch()
            except tf.errors.OpError as error:
                # A result is lost if its worker dies before the fetch. TensorFlow lets another worker compute
                # the result again, and a later fetch returns it.
                if not is_lost_worker(error) or time.monotonic() - began > self.seconds_to_come_back:
                    raise
                time.sleep(_SECONDS_BEFORE_ASKING_AGAIN)
            else:
                self._executions.end(execution.sendings[-1].time)
                return Answer(execution.wanted, execution.worker, int(ran), given, float(waited))

    def _check_servers(self) -> None:
        """Raise if a parameter server is gone.

        TensorFlow takes a connection that is reset for a short disturbance and sends the step again. The new
        call may then wait for ever.
        """
        gone = " and ".join(refusing_tasks(self._strategy, "ps"))
        if gone:
            raise tf.errors.UnavailableError(None, None, f"{gone} refuses connections")

    def _end_stuck_workers(self) -> None:
        """End the workers that answer, but have been at work on one execution for longer than the limit."""
        at_work = filter(None, (execution.at_work for execution in self._queue))
        for index, (seconds, limit) in self._executions.stuck(at_work, timeout_in_force()).items():
            [where] = named([Task("worker", index)], self._strategy)
            end_stalled_worker(Task("worker", index), where, seconds, limit)
