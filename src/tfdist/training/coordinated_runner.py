"""Run the steps of an epoch on asynchronous workers."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.profiler_span import WAITING, span
from tfdist._utils.tf_private import has_answered, has_failed, wait_for_answer
from tfdist.cluster.config import Task
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing, timeout_in_force
from tfdist.coordination.stalled_worker import WorkerExecutions, end_stalled_worker
from tfdist.errors import TaskLost
from tfdist.training.applied_steps import AppliedSteps, Begun
from tfdist.training.multi_step import Totals
from tfdist.training.no_autotune import untuned_on_devices
from tfdist.training.tables_in_loops import tables_in_loops
from tfdist.training.task_errors import (
    is_about_a_task,
    is_lost_worker,
    named,
    refusing_tasks,
    silent_tasks,
)
from tfdist.training.worker_index_in_graph import worker_index

__all__ = ["CoordinatedRunner", "OnWorker", "WorkerGraph"]

# Enough that no worker waits for the coordinator, and few enough to end soon when training stops.
_SCHEDULED_PER_WORKER = 4
_SECONDS_BEFORE_ASKING_AGAIN = 0.01
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_COPY = 0.0005
_TIMES_THE_SLOWEST = 5
_FOR_EVER = float("inf")
_SECONDS_TO_COME_BACK = 120.0
_SECONDS_BETWEEN_SERVER_CHECKS = 5.0

_WITH_WORKERS = Activity("")  # it lasts as long as they need, and they are watched
_log = logging.getLogger("tfdist")


class OnWorker:
    """An execution on a worker, which also returns the index of the worker that runs it.

    Attributes:
        executions: The executions that have begun and ended.
        applied: Where its steps are noted; None if they update nothing.
    """

    def __init__(self, execution: Callable[..., Any], applied: AppliedSteps | None = None) -> None:
        """Store what to execute.

        Args:
            execution: A function of an iterator and a number of steps, and with `applied` of what has begun.
                It returns the steps taken, their result, and the seconds that it waited for data.
            applied: Where its steps are noted; None if they update nothing.
        """
        self._execution, self.executions, self.applied = execution, WorkerExecutions(), applied

    @property
    def begun_specs(self) -> Sequence[Begun]:
        """Return the specs of what `begin` returns."""
        specs = Begun(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32))
        return [] if self.applied is None else [specs]

    def begin(self) -> Sequence[Begun]:
        """Return what the graph of a new execution gets besides data and steps."""
        return [] if self.applied is None else [self.applied.begin()]

    def execute(self, iterator: Any, steps: tf.Tensor, *begun: Begun) -> Any:
        """Execute steps, in a graph that the coordinator sends to a worker."""
        with tables_in_loops():
            index, done_before = (
                worker_index(self.executions.begin),
                begun[0].done if begun else tf.constant(0),
            )
            return index, done_before, *self._execution(iterator, steps, *begun)


class WorkerGraph(OnWorker):
    """The graph of an execution on a worker.

    Attributes:
        function: The graph.
    """

    def __init__(self, execution: Callable[..., Any], applied: AppliedSteps | None = None) -> None:
        """Make the graph."""
        super().__init__(execution, applied)
        self.function = tf.function(self.execute, autograph=False)


@dataclass
class _Epoch:
    """The state of an epoch.

    Attributes:
        steps: The steps that are wanted; None if the epoch is the data.
        promised: The steps that are done or scheduled.
        counted_before: The steps that the optimizer had counted when the epoch began.
        exhausted: The workers whose data have ended.
        last_news: When a worker last had a step or came to the end of its data.
    """

    steps: int | None
    counted_before: int = 0
    promised: int = 0
    exhausted: set[int] = field(default_factory=set)
    last_news: float = field(default_factory=time.monotonic)


class _Answer(NamedTuple):
    """The answer to an execution.

    Attributes:
        wanted: The steps that were scheduled.
        worker: The index of the worker that answers.
        ran: The steps that were applied, also by a worker that was lost.
        read: The batches that this worker has read.
        given: The result of its steps.
    """

    wanted: int
    worker: int
    ran: int
    read: int
    given: Any


class CoordinatedRunner:
    """A runner that gives each execution, of K steps, to a free worker.

    Attributes:
        waited: The seconds that the steps of all workers together have waited for data.
    """

    def __init__(
        self,
        graph: Any,
        dataset: Any,
        coordinator: Any,
        workers: int,
        *,
        merge: Callable[[Totals, Totals], Totals] = lambda totals, _: totals,
    ) -> None:
        """Prepare to run an execution on the workers of a coordinator.

        Args:
            graph: The WorkerGraph of the execution.
            dataset: The data set to run it on.
            coordinator: TensorFlow's ClusterCoordinator.
            workers: The number of workers.
            merge: A function that returns the totals merged with those of an execution.
        """
        self._merge, self._graph, self._executions = merge, graph, graph.executions
        self._dataset = dataset
        self._iterator: Any = None
        self._since_begun = 0  # steps since the beginning of the data, maybe in an earlier epoch
        self._coordinator = coordinator
        self._strategy = coordinator.strategy
        self._workers = workers
        self._scheduled: deque[tuple[int, Any]] = deque()
        self._is_winding_up = False
        self._is_without = False  # whether the epoch continues without a silent worker
        self._slowest = 0.0  # seconds of the slowest answer
        self._taken = [0] * workers  # batches that each worker has taken since the beginning of the data
        self._begun = 0  # how often the data have begun
        self._left_out: Any = None  # the distributed data without these batches, to begin with
        self._rests: tuple[int, int] | None = None  # every how many steps, and how many were done before
        self._done = 0  # steps of this epoch
        self.is_at_rest = True
        self.waited = 0.0

    def place(self) -> dict[str, Any]:
        """Return the place in the data: how many batches each worker has taken."""
        return {
            "begun": self._begun,
            "taken": list(self._taken),
            "is_open": self._iterator is not None,
        }

    def resume(self, place: Mapping[str, Any], make: Callable[[Sequence[int]], Any], *, again: bool) -> None:
        """Continue in the data at a place where an earlier process was.

        Each worker makes its data again for each pass, in the same order, so no earlier pass matters.
        """
        del again
        self._begun = place["begun"] - place["is_open"]
        if place["is_open"]:
            self._taken = list(place["taken"])
            self._left_out = make(self._taken)

    def rest_every(self, steps: int, done: int) -> None:
        """Make all executions end at each multiple of a number of steps, of which some are done."""
        self._rests = steps, done

    def rewind(self, dataset: Any = None) -> None:
        """Start the next epoch at the beginning of the data, or of other data distributed in the same way."""
        self._dataset = self._dataset if dataset is None else dataset
        self._iterator = None

    def wind_up(self) -> None:
        """End the running epoch when the workers have finished the executions that they were given."""
        self._is_winding_up = True

    def epoch(
        self, steps: int | None, steps_per_execution: int, totals: Totals, *, repeats: bool = True
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far."""
        with contextlib.closing(self.parts(steps, steps_per_execution, repeats=repeats)) as parts:
            for ran, given in parts:
                # As arrays: TensorFlow never frees a NumPy scalar that is also a Python number.
                totals = self._merge(totals, tf.nest.map_structure(np.asarray, given))
                yield ran, totals

    def parts(
        self, steps: int | None, steps_per_execution: int, *, repeats: bool = True
    ) -> Generator[tuple[int, Any], None, None]:
        """Run one epoch; yield for each execution how many steps it took, and its result.

        With a number of steps, an epoch continues in the data where the last epoch ended. If the data end
        first, the epoch begins them again if `repeats`, and ends otherwise. Without a number of steps, an
        epoch is the data set: every worker's part of it.

        A lost worker does not stop the epoch. The runner waits for the worker only if its part of the data
        must be seen, or if no other worker has data. It takes back the executions of a worker that is only
        silent, if the other workers can do them.
        """
        if steps is None or self._iterator is None:
            self._begin_data()
        self._is_winding_up, self._done = False, 0
        applied = self._graph.applied
        epoch, is_well = _Epoch(steps, 0 if applied is None else applied.counted()), True
        try:
            while steps is None or self._done < steps:
                self._fill_queue(epoch, steps_per_execution)
                if not self._scheduled:  # all workers' data have ended, or no more steps are wanted
                    if not self._begins_data_again(epoch, repeats=repeats):
                        return
                    continue
                with doing(_WITH_WORKERS), span(WAITING):
                    place = self._first_ready()
                if place is None:
                    epoch.promised -= self._take_back(is_epoch_the_data=steps is None)
                    continue
                with doing(_WITH_WORKERS):
                    answer = self._fetch(place)
                self._count(epoch, answer)
                if answer.ran:
                    yield answer.ran, answer.given
                self._note_end_of_data(epoch, answer)
        except Exception as error:
            is_well = False
            if not is_about_a_task(error):
                self._clear_error()
            raise
        finally:
            self._scheduled.clear()
            self._executions.forget()
            # Otherwise a task may be gone or silent, and join() would wait for its executions.
            if is_well and not self._is_without:
                self._coordinator.join()

    def _fill_queue(self, epoch: _Epoch, steps_per_execution: int) -> None:
        """Schedule executions, as long as a worker has data and a worker would wait soon."""
        while len(epoch.exhausted) < self._workers and self._has_room(epoch.steps, epoch.promised):
            wanted = min(steps_per_execution, self._limit(epoch.steps) - epoch.promised)
            epoch.promised += self._schedule(int(wanted))

    def _begins_data_again(self, epoch: _Epoch, *, repeats: bool) -> bool:
        """Begin the data again if the epoch wants more steps than they have; return whether it continues."""
        if epoch.steps is None or not self._since_begun or self._is_winding_up:
            return False
        if self._done and not repeats:
            self._iterator = None
            return False
        self._begin_data()
        epoch.exhausted, epoch.last_news = set(), time.monotonic()
        return True

    def _count(self, epoch: _Epoch, answer: _Answer) -> None:
        """Count the steps of an execution, and the batches that its worker has read."""
        epoch.promised -= answer.wanted - answer.ran
        self._done += answer.ran
        self._since_begun += answer.read
        self._taken[answer.worker] += answer.read
        self.is_at_rest = not self._scheduled
        if self.is_at_rest and self._graph.applied is not None:
            self._graph.applied.correct(epoch.counted_before + self._done)

    def _note_end_of_data(self, epoch: _Epoch, answer: _Answer) -> None:
        """Note a worker whose data have ended, and after a long time without steps that others are gone."""
        if answer.ran or answer.worker not in epoch.exhausted:
            epoch.last_news = time.monotonic()
        elif time.monotonic() - epoch.last_news > _SECONDS_TO_COME_BACK:
            is_epoch_the_data = epoch.steps is None or not self._since_begun
            self._go_without(epoch.exhausted, is_epoch_the_data=is_epoch_the_data)
            epoch.exhausted = set(range(self._workers))
        if answer.ran < answer.wanted:
            epoch.exhausted.add(answer.worker)
            # This worker is free at once, and would take the executions of the others.
            time.sleep(_SECONDS_BEFORE_ASKING_AGAIN)

    def _clear_error(self) -> None:
        """Cancel the scheduled steps, and clear the error that the next call to the coordinator would raise.

        TensorFlow keeps the first error of a worker until `schedule` or `join` raises it. The caller already
        gets this error from the step itself.
        """
        if has_failed(self._coordinator):
            with contextlib.suppress(Exception):  # the caller gets this error already
                self._coordinator.join()

    def _begin_data(self) -> None:
        dataset = self._note_begun()
        with untuned_on_devices():
            self._iterator = iter(dataset)

    def _note_begun(self) -> Any:
        """Count from the beginning of the data, or from where they are resumed; return the data to begin."""
        dataset, self._left_out = self._left_out, None
        if dataset is None:
            self._taken = [0] * self._workers
        self._begun, self._since_begun = self._begun + 1, sum(self._taken)
        return self._dataset if dataset is None else dataset

    def _has_room(self, steps: int | None, promised: int) -> bool:
        is_full = len(self._scheduled) >= _SCHEDULED_PER_WORKER * self._workers
        return not (is_full or self._is_winding_up) and promised < self._limit(steps)

    def _limit(self, steps: int | None) -> float:
        """Return up to how many steps of the epoch may be scheduled now."""
        limit = float("inf") if steps is None else steps
        if self._rests is None:
            return limit
        every, before = self._rests
        return min(limit, ((before + self._done) // every + 1) * every - before)

    def _schedule(self, wanted: int) -> int:
        """Schedule an execution of up to a number of steps, and return how many."""
        given = (self._iterator, tf.constant(wanted), *self._graph.begin())
        self._scheduled.append((wanted, self._coordinator.schedule(self._graph.function, args=given)))
        return wanted

    def _first_ready(self) -> int | None:
        """Wait for an answer, and return its place in the queue; return None after a very long wait."""
        began = checked = time.monotonic()
        # Before the first answer, the time that an execution takes is unknown.
        patience = (
            max(_SECONDS_TO_COME_BACK, _TIMES_THE_SLOWEST * self._slowest) if self._slowest else _FOR_EVER
        )
        while time.monotonic() - began < patience:
            for place, (_, closure) in enumerate(self._scheduled):
                if has_answered(closure):
                    self._slowest = max(self._slowest, time.monotonic() - began)
                    return place
            self._end_stuck_workers()
            if time.monotonic() - checked > _SECONDS_BETWEEN_SERVER_CHECKS:
                self._check_servers()
                checked = time.monotonic()
            first = self._scheduled[0][1]
            if wait_for_answer(first, _SECONDS_BETWEEN_LOOKS):
                time.sleep(_SECONDS_TO_COPY)
        return None

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
        for index, (seconds, limit) in self._executions.stuck(timeout_in_force()).items():
            [where] = named([("worker", index)], self._strategy)
            end_stalled_worker(Task("worker", index), where, seconds, limit)

    def _take_back(self, *, is_epoch_the_data: bool) -> int:
        """Cancel the executions of silent workers if others can do them; return how many steps these were."""
        count, steps = len(self._scheduled), sum(wanted for wanted, _ in self._scheduled)
        servers = " and ".join(silent_tasks(self._strategy, "ps"))
        silent = servers or " and ".join(silent_tasks(self._strategy, "worker"))
        if servers or (silent and (is_epoch_the_data or count >= self._workers)):
            remedy = "Its own log may say why; start the cluster again, from the last checkpoint"
            raise TaskLost(silent, "does not answer, and training cannot continue without it", remedy=remedy)
        if is_epoch_the_data or count >= self._workers:
            _log.warning("no worker has answered for a long time, but no task is silent: still waiting")
            return 0
        _log.warning("%d of %d workers do not answer; the others take over their steps", count, self._workers)
        self._is_without = True
        self._scheduled.clear()
        return steps

    def _fetch(self, place: int) -> _Answer:
        """Return the answer to an execution, by its place in the queue."""
        wanted, closure = self._scheduled[place]
        del self._scheduled[place]
        began = time.monotonic()
        while True:
            try:
                worker, done_before, ran, given, waited = closure.fetch()
            except tf.errors.OpError as error:
                # A result is lost if its worker dies before the fetch. TensorFlow lets another worker compute
                # the result again, and a later fetch returns it.
                if not is_lost_worker(error) or time.monotonic() - began > _SECONDS_TO_COME_BACK:
                    raise
                time.sleep(_SECONDS_BEFORE_ASKING_AGAIN)
            else:
                self.waited += float(waited)
                self._executions.end(int(worker))
                return _Answer(wanted, int(worker), int(ran), int(ran) - int(done_before), given)

    def _go_without(self, exhausted: set[int], *, is_epoch_the_data: bool) -> None:
        absent = [("worker", index) for index in range(self._workers) if index not in exhausted]
        names = " and ".join(named(absent, self._strategy))
        if is_epoch_the_data:
            problem = f"has been gone for {_SECONDS_TO_COME_BACK:g} s, and with it its part of the data"
            raise TaskLost(names, problem, remedy="Its own log says why; start it again")
        _log.warning(
            "training continues without %s, which has been gone for %g s", names, _SECONDS_TO_COME_BACK
        )
