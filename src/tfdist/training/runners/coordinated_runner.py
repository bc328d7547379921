"""Run the steps of an epoch on asynchronous workers."""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.profiler_span import WAITING, span
from tfdist._utils.tf_private import has_failed, only_trace, schedule_traced, traced_by_chief
from tfdist.cluster.config import Task
from tfdist.coordination.calls_between_tasks import addresses_of
from tfdist.coordination.find_and_break_connections import break_connections, peers_last_at
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.errors import TaskLost
from tfdist.training.data.data_part_progress import PartsOfData
from tfdist.training.error_messages.lost_task_errors import are_lost, is_about_a_task, named, silent_tasks
from tfdist.training.parameter_servers.await_server_writes import settle_writes
from tfdist.training.parameter_servers.variable_cache import new_call
from tfdist.training.runners.batches_for_workers import BatchesForWorkers, Call
from tfdist.training.runners.graphs_for_workers import WorkerGraph
from tfdist.training.runners.multi_step import Totals
from tfdist.training.runners.pending_executions import Answer, ScheduledExecutions
from tfdist.training.runners.place_in_data import PlaceInData

# Enough that no worker waits for the coordinator, and few enough to end soon when training stops.
_SCHEDULED_PER_WORKER = 4
_SECONDS_BEFORE_ASKING_AGAIN = 0.01
_SECONDS_BETWEEN_LOOKS_AT_WORKERS = 1.0
_SECONDS_TO_FIND_A_DESCRIPTOR = 60.0

_WITH_WORKERS = Activity("")  # it lasts as long as they need, and they are watched
_log = logging.getLogger("tfdist")


@dataclass
class Epoch:
    """The state of an epoch.

    Attributes:
        steps: The steps that are wanted; None if the epoch is the data.
        call: The number of the epoch, for executions.
        done: The steps that are done.
        promised: The steps that are done or scheduled.
        counted_before: The steps that the optimizer had counted when the epoch began.
        exhausted: The workers whose data have ended.
        gone: The workers that are lost, while the data of all others have ended.
        last_news: When a worker last had a step or came to the end of its data.
        looked_at: When it was last looked whether the workers are there whose data have not ended.
        is_winding_up: Whether it ends when what is scheduled is done.
    """

    steps: int | None
    call: int = 0
    counted_before: int = 0
    done: int = 0
    promised: int = 0
    exhausted: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    last_news: float = field(default_factory=time.monotonic)
    looked_at: float = float("-inf")
    is_winding_up: bool = False


class CoordinatedRunner:
    """A runner that gives each execution, of K steps, to a free worker.

    Attributes:
        waited: The seconds that the steps of all workers together have waited for data.
    """

    def __init__(
        self,
        graph: WorkerGraph,
        batches: BatchesForWorkers,
        coordinator: Any,
        workers: int,
        *,
        merge: Callable[[Totals, Totals], Totals] = lambda totals, _: totals,
    ) -> None:
        """Prepare to run a graph on workers.

        Args:
            graph: The graph of an execution.
            batches: The batches of the executions.
            coordinator: TensorFlow's coordinator.
            workers: The number of workers.
            merge: A function that returns the totals merged with those of an execution.
        """
        self._merge, self._graph = merge, graph
        self._batches = batches
        self._coordinator = coordinator
        self._strategy = coordinator.strategy
        self._workers = workers
        self._scheduled = ScheduledExecutions(self._strategy, graph.executions)
        self._epoch = Epoch(0)
        self._parts = PartsOfData(workers, graph.executions)
        self._begun = 0  # how often the data have begun
        self._resumed: Sequence[int] = ()  # batches of each part that an earlier process has taken
        self._rests: tuple[int, int] | None = None  # every how many steps, and how many were done before
        self._last_call: tuple[Any, Any] = (None, None)
        tasks, addresses = [Task("worker", index) for index in range(workers)], addresses_of(self._strategy)
        self._peers = {task: peers_last_at(addresses[task]) for task in tasks if task in addresses}
        self.is_at_rest = True
        self.waited = 0.0

    def place(self) -> PlaceInData:
        """Return the place in the data: how many batches each worker has taken."""
        return PlaceInData(self._begun, self._parts.taken(), self._batches.is_begun)

    def resume(self, place: PlaceInData, *, again: bool) -> None:
        """Continue in the data at a place where an earlier process was."""
        self._batches.resume(place, again=again)
        self._begun = place.begun - place.is_open
        if place.is_open:
            self._resumed = list(place.taken)

    def rest_every(self, steps: int, done: int) -> None:
        """Make all executions end at each multiple of a number of steps, of which some are done."""
        self._rests = steps, done

    def rewind(self, dataset: Any = None) -> None:
        """Start the next epoch at the beginning of the data, or of other data distributed in the same way."""
        self._batches.rewind(dataset)

    def begin_again(self) -> None:
        """Do nothing: which worker takes which batch is not that of one process anyway."""

    def begins_of_epoch(self, steps: int | None) -> int:
        """Return how often an epoch that is not continued begins the data."""
        del steps
        return 1

    def settle_writes(self) -> None:
        """Do nothing: workers are some executions ahead, and read later what is written between two."""

    def wind_up(self) -> None:
        """End the running epoch when the workers have finished the executions that they were given."""
        self._epoch.is_winding_up = True

    def epoch(
        self,
        steps: int | None,
        steps_per_execution: Callable[[], int],
        totals: Totals,
        *,
        repeats: bool = True,
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far."""
        with contextlib.closing(self.parts(steps, steps_per_execution, repeats=repeats)) as parts:
            # As arrays: TensorFlow never frees a NumPy scalar that is also a Python number.
            totals = tf.nest.map_structure(np.asarray, totals)
            for ran, given in parts:
                totals = tf.nest.map_structure(np.asarray, self._merge(totals, given))
                yield ran, totals

    def parts(
        self, steps: int | None, steps_per_execution: Callable[[], int], *, repeats: bool = True
    ) -> Generator[tuple[int, Any], None, None]:
        """Run one epoch; yield for each execution how many steps it took, and its result.

        With a number of steps, an epoch continues in the data where the last epoch ended. If the data end
        first, the epoch begins them again if `repeats`, and ends otherwise. Without a number of steps, an
        epoch is the data set: every worker's part of it. `steps_per_execution` returns how many steps the
        next execution takes.

        A lost worker does not stop the epoch. If it has not come back when the others have read their data,
        these read the rest of its part. The runner takes back the executions of a worker that is only silent,
        if the other workers can do them.
        """
        settle_writes(self._strategy)
        if steps is None or not self._batches.is_begun:
            self._begin_data()
        applied = self._graph.applied
        self._epoch = Epoch(steps, new_call(), 0 if applied is None else applied.counted())
        try:
            yield from self._answered(steps, steps_per_execution, repeats=repeats)
        except Exception as error:
            if not is_about_a_task(error):
                self._clear_error()
            raise
        finally:
            self._scheduled.clear()

    def _answered(
        self, steps: int | None, steps_per_execution: Callable[[], int], *, repeats: bool
    ) -> Generator[tuple[int, Any], None, None]:
        """Run the executions of an epoch; if it ends early, wait for those that workers were given."""
        try:
            while steps is None or self._epoch.done < steps:
                self._fill_queue(steps_per_execution)
                if not self._scheduled:  # all workers' data have ended, or no more steps are wanted
                    if not (self._take_over() or self._begins_data_again(repeats=repeats)):
                        return
                    continue
                answer = self._next_answer()
                if answer.ran:
                    yield answer.ran, answer.given
                self._note_end_of_data(answer)
        except (GeneratorExit, KeyboardInterrupt):
            while self._scheduled:
                self._next_answer()
            raise

    def _next_answer(self) -> Answer:
        """Wait for an answer, and count its steps; end the calls to workers that are silent for very long."""
        answered = None
        while answered is None:
            with doing(_WITH_WORKERS), span(WAITING):
                answered = self._scheduled.wait()
            if answered is None:
                self._end_calls_to_silent_workers()
        with doing(_WITH_WORKERS):
            answer = self._scheduled.fetch(answered)
        self._count(answer)
        return answer

    def _fill_queue(self, steps_per_execution: Callable[[], int]) -> None:
        """Schedule executions, as long as a worker has data and a worker would wait soon."""
        while not self._is_over_for_all() and self._has_room():
            wanted = min(steps_per_execution(), self._limit() - self._epoch.promised)
            self._epoch.promised += self._schedule(int(wanted))

    def _is_over_for_all(self) -> bool:
        return len(self._epoch.exhausted | self._epoch.gone) == self._workers

    def _take_over(self) -> bool:
        """Assign what lost workers leave to those whose data have ended; return whether there is any."""
        epoch = self._epoch
        has_left = self._batches.can_be_handed_over and self._parts.unfinished()
        if epoch.is_winding_up or not (self._is_over_for_all() and has_left):
            return False
        readers = self._parts.hand_over(epoch.exhausted)
        lost = " and ".join(named([Task("worker", index) for index in sorted(epoch.gone)], self._strategy))
        _log.warning("lost %s: other workers read what is left of its part of the data", lost)
        self._batches.continue_pass(self._parts)
        epoch.exhausted.difference_update(readers)
        epoch.last_news = time.monotonic()
        return True

    def _begins_data_again(self, *, repeats: bool) -> bool:
        """Begin the data again if the epoch wants more steps than they have; return whether it continues."""
        epoch = self._epoch
        if epoch.steps is None or not any(self._parts.taken()) or epoch.is_winding_up:
            return False
        if epoch.done and not repeats:
            self._batches.rewind()
            return False
        self._begin_data()
        epoch.exhausted, epoch.gone, epoch.last_news = set(), set(), time.monotonic()
        return True

    def _count(self, answer: Answer) -> None:
        """Count the steps of an execution."""
        epoch = self._epoch
        self.waited += answer.waited
        epoch.promised -= answer.wanted - answer.ran
        epoch.done += answer.ran
        self.is_at_rest = not self._scheduled
        if self.is_at_rest:
            self._parts.taken()  # after which no execution keeps a row, and another runner may begin
        if self.is_at_rest and self._graph.applied is not None:
            self._graph.applied.correct(epoch.counted_before + epoch.done)

    def _note_end_of_data(self, answer: Answer) -> None:
        """Note a worker whose data have ended, and whether all workers that have data are lost."""
        epoch = self._epoch
        if answer.ran or answer.worker not in epoch.exhausted:
            epoch.last_news = time.monotonic()
        else:
            epoch.gone = self._gone()
        if answer.ran < answer.wanted:
            self._parts.end(answer.worker)
            epoch.exhausted.add(answer.worker)
            # This worker is free at once, and would take the executions of the others.
            time.sleep(_SECONDS_BEFORE_ASKING_AGAIN)

    def _gone(self) -> set[int]:
        """Return the lost workers, also those that have data if they are all lost; look once a second."""
        epoch = self._epoch
        now, others = time.monotonic(), set(range(self._workers)) - epoch.exhausted - epoch.gone
        if not others or now - epoch.looked_at < _SECONDS_BETWEEN_LOOKS_AT_WORKERS:
            return epoch.gone
        epoch.looked_at = now
        if now - epoch.last_news > self._scheduled.seconds_to_come_back or are_lost(others, self._strategy):
            return epoch.gone | others
        return epoch.gone

    def _clear_error(self) -> None:
        """Cancel the scheduled steps, and clear the error that the next call to the coordinator would raise.

        TensorFlow keeps the first error of a worker until `schedule` or `join` raises it. The caller already
        gets this error from the step itself.
        """
        if has_failed(self._coordinator):
            with contextlib.suppress(Exception):  # the caller gets this error already
                self._coordinator.join()

    def _begin_data(self) -> None:
        """Begin the data, or continue where an earlier process was."""
        taken, self._resumed = self._resumed, ()
        self._parts.begin(taken)
        self._begun += 1
        self._batches.begin(self._parts, taken)

    def _has_room(self) -> bool:
        is_full = len(self._scheduled) >= _SCHEDULED_PER_WORKER * self._workers
        has_room = not (is_full or self._epoch.is_winding_up) and self._epoch.promised < self._limit()
        return has_room and self._batches.may_have_more()

    def _limit(self) -> float:
        """Return up to how many steps of the epoch may be scheduled now."""
        limit = float("inf") if self._epoch.steps is None else self._epoch.steps
        if self._rests is None:
            return limit
        every, before = self._rests
        return min(limit, ((before + self._epoch.done) // every + 1) * every - before)

    def _schedule(self, wanted: int) -> int:
        """Schedule an execution of up to a number of steps, and return how many."""
        call = self._batches.call(wanted)
        execution = self._graph.new_execution(call.steps, self._epoch.call)
        send, has_step_failed = partial(self._send, call), partial(has_failed, self._coordinator)
        self._parts.schedule(execution, send, has_step_failed)
        self._scheduled.add(execution)
        return call.steps

    def _send(self, call: Call, order: Any) -> Any:
        """Send a call to a worker; TensorFlow looks for its trace only if it is another than before."""
        graph, batches, _ = call
        is_again = graph is self._last_call[0] and batches is self._last_call[1]
        with traced_by_chief(self._strategy):  # a graph with a signature, when it is asked for its trace
            trace = only_trace(graph) if is_again or graph.input_signature is not None else None
        if trace is not None:
            return schedule_traced(self._coordinator, trace, (batches, order))
        self._last_call = graph, batches
        return self._coordinator.schedule(graph, args=(batches, order))

    def _end_calls_to_silent_workers(self) -> None:
        """Break the connections to the workers that do not answer: TensorFlow gives their steps to others."""
        silent = [Task("worker", index) for index in self._scheduled.workers]
        servers = " and ".join(silent_tasks(self._strategy, "ps"))
        tasks = servers or " and ".join(silent_tasks(self._strategy, "worker"))
        if servers or (tasks and len(silent) >= self._workers):
            raise _needed(tasks)
        if not silent:  # they read what a lost worker has begun, before their first execution
            return
        if len(silent) >= self._workers:
            _log.warning("no worker has answered for a long time, but no task is silent: still waiting")
            return
        names = " and ".join(named(silent, self._strategy))
        text = "%d of %d workers have ended no step for a long time: the others take over the steps of %s"
        _log.warning(text, len(silent), self._workers, names)
        addresses = addresses_of(self._strategy)
        # The name of a machine that is gone may be unknown now, or that of another one, as a container's is.
        peers = {
            peer for task in silent for peer in (*self._peers.get(task, ()), *peers_last_at(addresses[task]))
        }
        others = [task for task in addresses if task not in silent]
        peers -= {peer for task in others for peer in peers_last_at(addresses[task])}
        end = time.monotonic() + _SECONDS_TO_FIND_A_DESCRIPTOR
        while (count := break_connections(peers, names)) is None and time.monotonic() < end:
            time.sleep(_SECONDS_BETWEEN_LOOKS_AT_WORKERS)
        if count == 0:
            raise _needed(names)  # this system does not show them


def _needed(tasks: str) -> TaskLost:
    remedy = "Its own log may say why; start the cluster again, from the last checkpoint"
    return TaskLost(tasks, "does not answer, and training cannot continue without it", remedy=remedy)
