"""Share calls out among the tasks that are there, and go on without one that is lost until it is back."""

import collections
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, executor

from tfdist.cluster import Task
from tfdist.errors import ConfigError, TaskLost
from tfdist.probing import answers

__all__ = ["Pool"]

_SECONDS_BETWEEN_QUESTIONS = 1.0
# Where a process has ended, TensorFlow's calls to it fail, and its listener goes at about the same time.
_SECONDS_TO_BE_GONE = 2.0
_log = logging.getLogger("tfdist")


@dataclass
class _Run:
    """Hold which call a task works on, and when it was last seen."""

    number: int
    seen: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _End:
    """Hold how a call ended."""

    task: Task
    run: _Run
    value: Any = None
    error: BaseException | None = None


class _Caller:
    """Make the calls to one task, one after the other, in a thread of their own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], _Run, queue.Queue[_End]]]
        self._calls = queue.SimpleQueue()
        # A daemon: a call to a silent task never returns, and must not hold the process up.
        threading.Thread(target=self._make_calls, daemon=True).start()

    def call(self, call: Callable[[], Any], run: _Run, ends: "queue.Queue[_End]") -> None:
        """Make a call when those before have ended, and put into a queue how it ended."""
        self._calls.put((call, run, ends))

    def _make_calls(self) -> None:
        # An executor of its own, or the failure of one task would be taken for that of the next. It is not
        # left or dropped: both would wait for all calls that are on their way, those to a silent task too.
        own = executor.new_executor(enable_async=False)
        context.context().executor = own
        while True:
            call, run, ends = self._calls.get()
            try:
                end = _End(self._task, run, call())
            except BaseException as error:  # noqa: BLE001  # raised, or answered, where the end is awaited
                end = _End(self._task, run, error=error)
                own.clear_error()
            ends.put(end)


class Pool:
    """Hold the tasks that compute, and who of them is lost."""

    def __init__(
        self, addresses: Mapping[Task, str], silence: float, reconnect: Callable[[Sequence[Task]], None]
    ) -> None:
        """Take tasks that are connected.

        Args:
            addresses: The tasks, and where they are.
            silence: Seconds without an answer after which one is lost.
            reconnect: Connects to these tasks and no others; those that are connected already stay so.
        """
        self._addresses, self._silence, self._reconnect = addresses, silence, reconnect
        self._lost: dict[Task, str] = {}
        self._closed = threading.Event()
        self._callers = {task: _Caller(task) for task in addresses}
        self._returns: threading.Thread | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """List the tasks that are there."""
        return tuple(task for task in self._addresses if task not in self._lost)

    def of(self, job: str | None) -> list[Task]:
        """List the tasks of a job, or of all of them: those that are lost too, as long as one is not."""
        found = [task for task in self._addresses if job in (None, task.type)]
        return found if any(task not in self._lost for task in found) else []

    def close(self) -> None:
        """Refuse all from here on: the tasks were let go."""
        self._closed.set()

    def check(self, task: Task) -> None:
        """Refuse a task that is not there."""
        self._check_open()
        if task not in self._addresses:
            known = ", ".join(map(str, self._addresses))
            raise ConfigError("connect", expected=f"one of {known}", received=str(task))
        if task in self._lost:
            raise TaskLost(f"{task} at {self._addresses[task]}", self._lost[task], remedy="Start all again")

    def share(self, count: int, call: Callable[[Task, int], Any], tasks: Sequence[Task]) -> list[Any]:
        """Make calls numbered from 0, each on the next task that is free; give their values, in order."""
        self._check_open()
        waiting = collections.deque(range(count))
        values: dict[int, Any] = {}
        running: dict[Task, _Run] = {}
        ends: queue.Queue[_End] = queue.Queue()
        asked = time.monotonic()
        while len(values) < count:
            for task in tasks:
                if waiting and task not in running and task not in self._lost:
                    running[task] = run = _Run(waiting.popleft())
                    self._callers[task].call(partial(call, task, run.number), run, ends)
            if not running:
                raise self._all_lost(tasks)
            end = _next(ends)
            # A task that was silent may have ended what was taken from it, and now be back.
            if end is not None and running.get(end.task) is end.run:
                run = running.pop(end.task)
                if end.error is None:
                    values[run.number] = end.value
                else:
                    self._lose(end.task, self._why_lost(end.task, end.error))
                    waiting.appendleft(run.number)
            if time.monotonic() - asked >= _SECONDS_BETWEEN_QUESTIONS:
                for task in self._found_lost(running):
                    waiting.appendleft(running.pop(task).number)
                asked = time.monotonic()
        return [values[number] for number in range(count)]

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ConfigError("connect", "its block has ended, and the tasks with it", remedy="Do it inside")

    def _lose(self, task: Task, why: str) -> None:
        self._lost[task] = why
        _log.warning("%s at %s %s: goes on without it", task, self._addresses[task], why)
        if self._returns is None:
            # A daemon: TensorFlow may be held up by a task that falls silent as it is connected.
            self._returns = threading.Thread(target=self._await_returns, daemon=True)
            self._returns.start()

    def _await_returns(self) -> None:
        """Look once a second who is back, and connect to it anew."""
        while not self._closed.wait(_SECONDS_BETWEEN_QUESTIONS):
            known = {task: answers(self._addresses[task]) for task in self._lost.copy()}
            back = [task for task, answer in known.items() if answer]
            # TensorFlow takes leave of those that are left out, and waits for ever for one that is silent.
            if back and None not in known.values():
                try:
                    self._reconnect([*self.tasks, *back])
                except tf.errors.OpError as error:
                    _log.info("cannot take %s back yet: %s", back[0], str(error).splitlines()[0])
                    continue
                for task in back:
                    self._callers[task] = _Caller(task)  # the old one may still be in a call
                    del self._lost[task]
                    _log.warning("%s at %s is back", task, self._addresses[task])

    def _why_lost(self, task: Task, error: BaseException) -> str:
        """Say why a call's failure is that of its task; raise what is not."""
        if not isinstance(error, tf.errors.OpError):
            raise error
        if self._is_gone(task):
            return "is gone"
        if not isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
            raise error
        for other, address in self._addresses.items():
            if other != task and self._is_gone(other):
                problem = f"is gone, and what {task} was to compute needs it"
                raise TaskLost(f"{other} at {address}", problem, remedy="Start all again") from error
        return "has been started anew, or cannot be reached by the others"

    def _is_gone(self, task: Task) -> bool:
        end = time.monotonic() + _SECONDS_TO_BE_GONE
        while answers(self._addresses[task]):
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def _found_lost(self, running: Mapping[Task, _Run]) -> list[Task]:
        """Find those that are gone, or have been silent for too long; they are lost."""
        found = []
        for task, run in running.items():
            answer = answers(self._addresses[task])
            if answer:
                run.seen = time.monotonic()
            elif answer is False or time.monotonic() - run.seen > self._silence:
                # TensorFlow may take its time to fail a call to a process that has ended.
                self._lose(task, "is gone" if answer is False else f"has been silent for {self._silence:g} s")
                found.append(task)
        return found

    def _all_lost(self, tasks: Sequence[Task]) -> TaskLost:
        reasons = "; ".join(f"{task} {self._lost[task]}" for task in tasks)
        return TaskLost("map", f"no task is left: {reasons}", remedy="Their logs say why; start all again")


def _next(ends: "queue.Queue[_End]") -> _End | None:
    try:
        return ends.get(timeout=_SECONDS_BETWEEN_QUESTIONS)
    except queue.Empty:
        return None
