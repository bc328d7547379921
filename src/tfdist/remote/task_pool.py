"""Distribute calls among tasks; a lost task gets no calls until it is back."""

import collections
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import use_own_executor
from tfdist.cluster.config import Task
from tfdist.coordination.background_threads import each_in_time
from tfdist.coordination.calls_between_tasks import call_each, fetch
from tfdist.coordination.grpc_health_probe import SECONDS_BETWEEN_CHECKS, SilenceClock, answers
from tfdist.errors import ConfigError, TaskLost, first_line

# When a process ends, TensorFlow's calls to it fail, and its listener closes at about the same time.
_SECONDS_TO_BE_GONE = 2.0
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_END = 10.0  # for calls beside one that has failed
_log = logging.getLogger("tfdist")


@dataclass(eq=False)
class _Run:
    """The number of the call that a task computes, and how long the task has been silent meanwhile."""

    number: int
    silence: SilenceClock = field(default_factory=SilenceClock)


class _Health:
    """The answers of tasks that a thread asks all at once, since each silent one takes seconds."""

    def __init__(self, running: Mapping[Task, _Run], addresses: Mapping[Task, str]) -> None:
        self.asked = dict(running)
        self._addresses = addresses
        self.answers: Mapping[Task, bool | None] | None = None  # None until they have come
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        known = each_in_time(lambda task: answers(self._addresses[task]), self.asked, _SECONDS_TO_ANSWER)
        self.answers = {task: known.get(task) for task in self.asked}


@dataclass(frozen=True)
class _End:
    """The result or the error of a call."""

    task: Task
    run: _Run
    value: Any = None
    error: BaseException | None = None


class _Caller:
    """A thread that makes the calls to one task, one after the other."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], _Run, queue.Queue[_End]]]
        self._calls = queue.SimpleQueue()
        # A daemon: a call to a silent task never returns, and must not keep the process alive.
        threading.Thread(target=self._make_calls, daemon=True).start()

    def call(self, call: Callable[[], Any], run: _Run, ends: "queue.Queue[_End]") -> None:
        """Make a call after the earlier ones, and put its result or error into a queue."""
        self._calls.put((call, run, ends))

    def _make_calls(self) -> None:
        # Without an executor of its own, the failure of one task would also fail the next. The thread never
        # resets the executor, which would wait for all pending calls, also for those to a silent task.
        own = use_own_executor()
        while True:
            call, run, ends = self._calls.get()
            try:
                end = _End(self._task, run, call())
            except BaseException as error:  # noqa: BLE001  # the reader of the queue handles it
                end = _End(self._task, run, error=error)
                own.clear_error()
            ends.put(end)


class Pool:
    """The tasks that compute, and the lost ones among them."""

    def __init__(
        self,
        addresses: Mapping[Task, str],
        heartbeat_timeout: float,
        reconnect: Callable[[Sequence[Task]], None],
    ) -> None:
        """Start one thread for each connected task.

        Args:
            addresses: The addresses of the tasks.
            heartbeat_timeout: Seconds without an answer after which a task is lost.
            reconnect: Connects to exactly these tasks, and keeps the connections that exist.
        """
        self._addresses, self._heartbeat_timeout, self._reconnect = addresses, heartbeat_timeout, reconnect
        self._lost: dict[Task, str] = {}
        self._closed = threading.Event()
        self._callers = {task: _Caller(task) for task in addresses}
        self._returns: threading.Thread | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks that are not lost."""
        return tuple(task for task in self._addresses if task not in self._lost)

    def of(self, job: str | None) -> list[Task]:
        """Return all tasks of a job (None: of all jobs), or an empty list if all of them are lost."""
        tasks = [task for task in self._addresses if job in (None, task.type)]
        return tasks if any(task not in self._lost for task in tasks) else []

    def close(self) -> None:
        """Close the pool after its tasks have ended; later calls raise a ConfigError."""
        self._closed.set()

    def check(self, task: Task) -> None:
        """Raise an error if a task is unknown or lost."""
        self._check_open()
        if task not in self._addresses:
            known = ", ".join(map(str, self._addresses))
            raise ConfigError("connect", expected=f"one of {known}", received=str(task))
        if why := self._lost.get(task):
            raise TaskLost(f"{task} at {self._addresses[task]}", why, remedy="Start all again")

    def share(self, count: int, call: Callable[[Task, int], Any], tasks: Sequence[Task]) -> list[Any]:
        """Make calls numbered from 0, each on the next free task; return their values, in order."""
        self._check_open()
        running: dict[Task, _Run] = {}
        ends: queue.Queue[_End] = queue.Queue()
        try:
            return self._share(count, call, tasks, running, ends)
        except TaskLost:
            raise
        except Exception:
            # TensorFlow fails what a task is sent behind a call with the error of the call.
            _await(running, ends)
            raise

    def _share(
        self,
        count: int,
        call: Callable[[Task, int], Any],
        tasks: Sequence[Task],
        running: dict[Task, _Run],
        ends: "queue.Queue[_End]",
    ) -> list[Any]:
        waiting = collections.deque(range(count))
        values: dict[int, Any] = {}
        asked, health = time.monotonic(), None
        failed: set[int] = set()  # calls that have failed once, on tasks that are there
        while len(values) < count:
            lost = self._lost.copy()  # a task may come back at any moment
            for task in tasks:
                if waiting and task not in running and task not in lost:
                    running[task] = run = _Run(waiting.popleft())
                    self._callers[task].call(partial(call, task, run.number), run, ends)
            if not running:
                reasons = "; ".join(f"{task} {lost[task]}" for task in tasks)
                problem = f"no task is left: {reasons}"
                raise TaskLost("map", problem, remedy="Their logs say why; start all again")
            end = _next(ends)
            # A task that was silent may be back, and may have computed a call that another task got.
            if end is not None and running.get(end.task) is end.run:
                run = running.pop(end.task)
                if end.error is None:
                    values[run.number] = end.value
                else:
                    if why := self._why_lost(end.task, end.error):
                        self._lose(end.task, why)
                    elif run.number in failed:
                        raise end.error
                    else:  # a connection may have broken for a moment
                        failed.add(run.number)
                    waiting.appendleft(run.number)
            if health is None and time.monotonic() - asked >= SECONDS_BETWEEN_CHECKS:
                asked, health = time.monotonic(), _Health(running, self._addresses)
            if health is not None and health.answers is not None:
                for task in self._newly_lost(running, health.asked, health.answers):
                    waiting.appendleft(running.pop(task).number)
                health = None
        return [values[number] for number in range(count)]

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ConfigError(
                "connect",
                "its `with` block has ended, and with it the tasks",
                remedy="Call it inside the block",
            )

    def _lose(self, task: Task, why: str) -> None:
        self._lost[task] = why
        _log.warning("%s at %s %s: continuing without it", task, self._addresses[task], why)
        if self._returns is None:
            # A daemon: TensorFlow may wait for ever for a task that becomes silent during the connection.
            self._returns = threading.Thread(target=self._await_returns, daemon=True)
            self._returns.start()

    def _await_returns(self) -> None:
        """Check once a second which lost tasks are back, and connect to them again."""
        while not self._closed.wait(SECONDS_BETWEEN_CHECKS):
            known = {task: answers(self._addresses[task]) for task in self._lost.copy()}
            back = [task for task, answer in known.items() if answer]
            # TensorFlow disconnects the omitted tasks explicitly, and waits for ever for a silent one.
            if back and None not in known.values():
                try:
                    self._reconnect([*self.tasks, *back])
                    for task in back:
                        self._callers[task] = _Caller(task)  # the old one may still be in a call
                        del self._lost[task]
                        _log.warning("%s at %s is back", task, self._addresses[task])
                except Exception as error:  # noqa: BLE001  # no other thread takes tasks back
                    _log.info("cannot take %s back yet: %s", back[0], first_line(error))

    def _why_lost(self, task: Task, error: BaseException) -> str:
        """Return why a task is lost after a failed call, or an empty text if it still computes.

        Raise the error if it does not look like that of a lost task. A function may fail in the same way: it
        may read a storage that is not available.
        """
        if not isinstance(error, tf.errors.OpError):
            raise error
        if self._is_gone(task):
            return "is gone"
        if not isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
            raise error
        known = each_in_time(answers, self._addresses.values(), _SECONDS_TO_ANSWER)
        for other, address in self._addresses.items():
            if other != task and not known.get(address, True):
                problem = f"is gone, and what {task} was to compute needs it"
                raise TaskLost(f"{other} at {address}", problem, remedy="Start all again") from error
        return "" if _still_computes(task) else "has been started again"

    def _is_gone(self, task: Task) -> bool:
        end = time.monotonic() + _SECONDS_TO_BE_GONE
        while answers(self._addresses[task]):
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def _newly_lost(
        self, running: Mapping[Task, _Run], asked: Mapping[Task, _Run], answers: Mapping[Task, bool | None]
    ) -> list[Task]:
        """Return the tasks that have ended or have been silent for too long, after marking them as lost."""
        lost = []
        for task in asked.keys() & running.keys():
            answer, run = answers[task], running[task]
            if run is not asked[task]:  # the task may have been started again since
                continue
            silent_for = run.silence.after(answer)
            if answer is False or silent_for > self._heartbeat_timeout:
                # TensorFlow may take long to fail a call to a process that has ended.
                self._lose(
                    task,
                    "is gone" if answer is False else f"has been silent for {self._heartbeat_timeout:g} s",
                )
                lost.append(task)
        return lost


def _still_computes(task: Task) -> bool:
    """Return whether a task computes for this process, which one that was started again does not."""
    with tf.device(None):
        one = tf.constant(1)

    def compute(task: Task) -> Any:
        with tf.device(task.cpu):
            return fetch(tf.identity(one))

    return task in call_each(compute, [task], _SECONDS_TO_ANSWER)


def _await(running: dict[Task, _Run], ends: "queue.Queue[_End]") -> None:
    """Wait until calls have ended, but not for long."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while running and (seconds := deadline - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            end = ends.get(timeout=seconds)
            if running.get(end.task) is end.run:
                del running[end.task]


def _next(ends: "queue.Queue[_End]") -> _End | None:
    try:
        return ends.get(timeout=SECONDS_BETWEEN_CHECKS)
    except queue.Empty:
        return None
