"""Run the steps of an epoch on workers that go each at its own pace."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import TaskLost
from tfdist.loop.beginnings import Beginnings
from tfdist.loop.executions import Totals
from tfdist.loop.lost import is_lost_worker, named, silent_tasks
from tfdist.loop.workers import worker_index

__all__ = ["CoordinatedRunner"]

# Enough that no worker waits for the coordinator, few enough that they end soon when training is stopped.
_SCHEDULED_PER_WORKER = 4
_SECONDS_BEFORE_ASKING_AGAIN = 0.01
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_COPY = 0.0005
_TIMES_THE_SLOWEST = 5
_FOR_EVER = float("inf")
_SECONDS_TO_COME_BACK = 120.0

_log = logging.getLogger("tfdist")


class CoordinatedRunner:
    """Run an execution, of K steps, on whichever worker is free.

    Attributes:
        waited: The seconds that all workers' steps have waited for data.
    """

    def __init__(
        self, execution: Callable[[Any, tf.Tensor], Any], dataset: Any, coordinator: Any, workers: int
    ) -> None:
        self._execute = tf.function(
            lambda iterator, steps: (worker_index(), *execution(iterator, steps)), autograph=False
        )
        self._dataset, self._beginnings = dataset, Beginnings()
        self._iterator: Any = None
        self._since_begun = 0  # steps since the data were begun, maybe in an earlier epoch
        self._coordinator = coordinator
        self._strategy = coordinator.strategy
        self._workers = workers
        self._scheduled: deque[tuple[int, Any]] = deque()
        self._is_winding_up = False
        self._is_without = False  # a worker that has fallen silent
        self._slowest = 0.0  # seconds until an answer
        self.waited = 0.0

    def rewind(self, dataset: Any = None) -> None:
        """Let the next epoch begin with the data's beginning, or with that of others, handed out alike."""
        self._dataset = self._dataset if dataset is None else dataset
        self._iterator = None

    def wind_up(self) -> None:
        """Let the epoch that is running end when the workers have done what they have been given."""
        self._is_winding_up = True

    def epoch(
        self, steps: int | None, steps_per_execution: int, totals: Totals
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far."""
        with contextlib.closing(self.parts(steps, steps_per_execution)) as parts:
            for ran, added in parts:
                # As arrays: TensorFlow keeps a number of NumPy's that is also one of Python's for ever.
                totals = tuple(total + np.asarray(part) for total, part in zip(totals, added, strict=True))
                yield ran, totals

    def parts(self, steps: int | None, steps_per_execution: int) -> Generator[tuple[int, Any], None, None]:
        """Run one epoch; yield of each execution how many steps it took, and what it gave.

        With a number of steps, the data are gone on with where the last epoch left them, and begun anew as
        often as needed. Without, an epoch is the data set: every worker's part of it.

        A lost worker is no reason to stop. Where its part of the data must be seen, or nobody else has data,
        it is waited for. What a worker that only falls silent was given is taken back, if it may be.
        """
        if steps is None or self._iterator is None:
            self._begin_data()
        exhausted: set[int] = set()
        self._is_winding_up = False
        done = promised = 0
        last_news, is_well = time.monotonic(), True
        try:
            while steps is None or done < steps:
                while len(exhausted) < self._workers and self._has_room(steps, promised):
                    wanted = (
                        steps_per_execution if steps is None else min(steps_per_execution, steps - promised)
                    )
                    self._schedule(wanted)
                    promised += wanted
                if not self._scheduled:  # all workers' data have ended, or no more is wanted
                    if steps is None or not self._since_begun or self._is_winding_up:
                        return
                    self._begin_data()
                    exhausted, last_news = set(), time.monotonic()
                    continue
                place = self._first_ready()
                if place is None:
                    promised -= self._take_back(is_epoch_the_data=steps is None)
                    continue
                wanted, worker, ran, given = self._fetch(place)
                promised -= wanted - ran
                done, self._since_begun = done + ran, self._since_begun + ran
                if ran:
                    yield ran, given
                if ran or worker not in exhausted:
                    last_news = time.monotonic()
                elif time.monotonic() - last_news > _SECONDS_TO_COME_BACK:
                    self._go_on_without(exhausted, is_epoch_the_data=steps is None or not self._since_begun)
                    exhausted = set(range(self._workers))
                if ran < wanted:
                    exhausted.add(worker)
                    # It is free at once to take what the others should.
                    time.sleep(_SECONDS_BEFORE_ASKING_AGAIN)
        except Exception:
            is_well = False
            raise
        finally:
            self._scheduled.clear()
            # Else a task may be gone or silent, and what it has in hand would be waited for.
            if is_well and not self._is_without:
                self._coordinator.join()

    def _begin_data(self) -> None:
        self._iterator, self._since_begun = self._beginnings.begin(self._dataset), 0

    def _has_room(self, steps: int | None, promised: int) -> bool:
        is_full = len(self._scheduled) >= _SCHEDULED_PER_WORKER * self._workers
        return not (is_full or self._is_winding_up) and (steps is None or promised < steps)

    def _schedule(self, wanted: int) -> None:
        closure = self._coordinator.schedule(self._execute, args=(self._iterator, tf.constant(wanted)))
        self._scheduled.append((wanted, closure))

    def _first_ready(self) -> int | None:
        """Wait for the first answer, and give its place; None where there is none for very long."""
        began = time.monotonic()
        # Nobody knows how long an execution takes before one has been seen.
        patience = (
            max(_SECONDS_TO_COME_BACK, _TIMES_THE_SLOWEST * self._slowest) if self._slowest else _FOR_EVER
        )
        while time.monotonic() - began < patience:
            for place, (_, closure) in enumerate(self._scheduled):
                # TensorFlow has no public way to ask: fetch() waits, also for a worker that is silent. What a
                # worker has given is copied to this process by a thread of the coordinator's.
                if closure._has_fetched_to_local or closure._error is not None:
                    self._slowest = max(self._slowest, time.monotonic() - began)
                    return place
            first = self._scheduled[0][1]
            if first._status_available_event.wait(_SECONDS_BETWEEN_LOOKS):
                time.sleep(_SECONDS_TO_COPY)
        return None

    def _take_back(self, *, is_epoch_the_data: bool) -> int:
        """Give up what silent workers have in hand, if the others can do it; say how many steps that is."""
        count, steps = len(self._scheduled), sum(wanted for wanted, _ in self._scheduled)
        servers = " and ".join(silent_tasks(self._strategy, "ps"))
        silent = servers or " and ".join(silent_tasks(self._strategy, "worker"))
        if servers or (silent and (is_epoch_the_data or count >= self._workers)):
            remedy = "Its own log may say why; start the cluster again, from the last checkpoint"
            raise TaskLost(silent, "does not answer, and nobody gets on without it", remedy=remedy)
        if is_epoch_the_data or count >= self._workers:
            _log.warning("no worker has given an answer for long, and no task is silent: waiting on")
            return 0
        _log.warning(
            "%d of %d workers give no answer; the others do what they were given", count, self._workers
        )
        self._is_without = True
        self._scheduled.clear()
        return steps

    def _fetch(self, place: int) -> tuple[int, int, int, Any]:
        wanted, closure = self._scheduled[place]
        del self._scheduled[place]
        began = time.monotonic()
        while True:
            try:
                worker, ran, given, waited = closure.fetch()
            except tf.errors.OpError as error:
                # What a worker gave is gone with it where it dies before its answer is fetched.
                # TensorFlow has another worker compute it, and that is what is fetched then.
                if not is_lost_worker(error) or time.monotonic() - began > _SECONDS_TO_COME_BACK:
                    raise
                time.sleep(_SECONDS_BEFORE_ASKING_AGAIN)
            else:
                self.waited += float(waited)
                return wanted, int(worker), int(ran), given

    def _go_on_without(self, exhausted: set[int], *, is_epoch_the_data: bool) -> None:
        absent = [("worker", index) for index in range(self._workers) if index not in exhausted]
        names = " and ".join(named(absent, self._strategy))
        if is_epoch_the_data:
            problem = f"is gone for {_SECONDS_TO_COME_BACK:g} s, and with it its part of the data"
            raise TaskLost(names, problem, remedy="Its own log says why; start it again")
        _log.warning("goes on without %s, gone for %g s", names, _SECONDS_TO_COME_BACK)
