"""Detect a task of the cluster that is silent or gone, which TensorFlow would wait for without end.

A call to a task that is stopped, or whose link is cut, neither returns nor fails. It ends only with the
calling process or with its connection. So one thread per watched task checks once a second whether that task
answers.
"""

import logging
import numbers
from collections.abc import Callable, Collection

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.background_threads import TaskThreads, end_process
from tfdist.coordination.find_and_break_connections import break_connections, peers_at
from tfdist.coordination.grpc_health_probe import SECONDS_BETWEEN_CHECKS, SilenceClock, answers
from tfdist.errors import ConfigError, TaskLost, shown
from tfdist.launcher.send_reports import report_silent

# If a process has ended, most of TensorFlow's calls to it fail within this time, with an error that says
# more.
_SECONDS_BEFORE_OWN_ERROR = 10.0
_SECONDS_FOR_LAUNCHER = 10.0  # to kill a silent task; it cannot if the machine is cut off
SHORTEST_TIMEOUT = 5.0
_EVALUATOR = "evaluator"
_continued_without: set[Task] = set()
_log = logging.getLogger("tfdist")


def check_heartbeat_timeout(where: str, timeout: object) -> None:
    """Raise ConfigError unless a timeout that a script gives is a number of seconds, and long enough."""
    if not (isinstance(timeout, numbers.Real) and SHORTEST_TIMEOUT <= float(timeout) < float("inf")):
        expected = f"a number of seconds from {SHORTEST_TIMEOUT:g}"
        raise ConfigError(f"{where}: heartbeat_timeout", expected=expected, received=shown(timeout))


class Watcher(TaskThreads):
    """Watch the tasks that this task waits for, for as long as the block lasts.

    The chief watches all tasks, and the other tasks watch the chief. If a watched task is lost, this
    process ends with status 138, and the tasks that watch this process notice in turn. If the others continue
    without a silent task, its connections are broken: TensorFlow then gives its work to the others.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        *,
        heartbeat_timeout: float,
        spared: Collection[str] = (),
        at_loss: Callable[[TaskLost], object] | None = None,
    ) -> None:
        """Store which tasks to watch, and prepare one thread for each.

        Args:
            cluster: The cluster and this process's task.
            heartbeat_timeout: Seconds without an answer after which a task counts as lost.
            spared: Job names of tasks without which the others continue, besides the evaluator.
            at_loss: Called with the error instead of ending this process, whose calls to the lost task
                never return.
        """
        watched = [task for task in cluster.tasks() if task != cluster.lead]
        if cluster.task is None:
            watched = []
        elif cluster.task != cluster.lead:
            watched = [cluster.lead]
        super().__init__(self._watch, watched)
        self._cluster, self._heartbeat_timeout = cluster, heartbeat_timeout
        self._spared, self._at_loss = {*spared, _EVALUATOR}, at_loss or end_process

    def _watch(self, task: Task) -> None:
        address, silence = self._cluster.address(task), SilenceClock()
        spared = _SparedTask(task, address) if task.type in self._spared else None
        while not self.is_over.wait(SECONDS_BETWEEN_CHECKS):
            is_alive = answers(address)
            silent_for = silence.after(is_alive)
            if spared is not None:
                spared.note(is_alive)
            if is_alive:
                continue
            limit = _SECONDS_BEFORE_OWN_ERROR if is_alive is False else self._heartbeat_timeout
            if silent_for < limit or self.is_over.is_set():
                continue
            if spared is not None:
                spared.continue_without(silent_for, limit)
                continue
            state = "gone" if is_alive is False else "silent"
            self._end(f"{task} at {address}", f"{state} for {silent_for:.0f} s", task, silent_for)
            silence = SilenceClock()  # report again later if this process does not end

    def _end(self, where: str, problem: str, task: Task, seconds: float) -> None:
        """End this process, whose main thread waits in a call that nothing else ends."""
        if report_silent(str(task), seconds):
            # The launcher ends the silent task, and then the calls to that task fail.
            _log.warning("%s %s", where, problem)
            return
        remedy = "Its own log may say why; start the cluster again"
        self._at_loss(TaskLost(where, problem, remedy=remedy))


class _SparedTask:
    """A task without which the others continue: name it once, and end the calls to it."""

    def __init__(self, task: Task, address: str) -> None:
        self._task, self._address = task, address
        # An evaluator is no part of the training cluster: it may begin later, and end earlier.
        self._may_be_absent = self._has_not_answered = task.type == _EVALUATOR
        self._peers = peers_at(address)
        self._is_alive: bool | None = True
        self._is_named = self._is_left_to_launcher = False

    def note(self, is_alive: bool | None) -> None:
        """Note whether the task answers; it may be back on another machine."""
        if is_alive and not self._is_alive:
            peers = peers_at(self._address)
            # Nothing else ends the connections to the machine before.
            if break_connections(self._peers - peers, str(self._task)) is None:
                return
            self._peers = peers
        if is_alive:
            self._is_named = self._has_not_answered = False
            _continued_without.discard(self._task)
        self._is_alive = is_alive

    def continue_without(self, seconds: float, limit: float) -> None:
        """Name the task, which has not answered for so many seconds, and end the calls to it."""
        is_silent = self._is_alive is None  # a task that refuses connections is gone, or restarts
        if self._may_be_absent and (self._has_not_answered or not is_silent):
            return
        if not self._is_named:
            state = "silent" if is_silent else "gone"
            text = "%s at %s %s for %.0f s: training continues without it"
            _log.warning(text, self._task, self._address, state, seconds)
            self._is_left_to_launcher = is_silent and report_silent(str(self._task), seconds)
            self._is_named = True
        patience = limit + (_SECONDS_FOR_LAUNCHER if self._is_left_to_launcher else 0.0)
        # Again and again: a stopped task accepts new ones.
        if not is_silent or seconds < patience:
            return
        if break_connections(self._peers, str(self._task)) is not None:
            _continued_without.add(self._task)


def is_continued_without(task: Task) -> bool:
    """Return whether a task is silent and this process has ended its calls to it."""
    return task in _continued_without
