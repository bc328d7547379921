"""Detect a task of the cluster that is silent or gone, which TensorFlow would wait for without end.

A call to a task that is stopped, or whose link is cut, neither returns nor fails. It ends only with the
calling process or with its connection. So one thread per watched task checks once a second whether that task
answers.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.break_connections import break_connections, peers_at
from tfdist.coordination.health import SECONDS_BETWEEN_CHECKS, SilenceClock, answers
from tfdist.coordination.thread_per_task import TaskThreads
from tfdist.errors import TaskLost, TfdistError
from tfdist.launcher.chief_reports import report_silent

__all__ = ["Watcher", "end_process"]

# If a process has ended, most of TensorFlow's calls to it fail within this time, with an error that says
# more.
_SECONDS_BEFORE_OWN_ERROR = 10.0
_SECONDS_FOR_LAUNCHER = 10.0  # to kill a silent task; it cannot if the machine is cut off
_EVALUATOR = "evaluator"  # it is no part of the training cluster, whose tasks connect before they are watched
_log = logging.getLogger("tfdist")


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
        only: Collection[str] = (),
        at_loss: Callable[[TaskLost], object] | None = None,
    ) -> None:
        """Store which tasks to watch, and prepare one thread for each.

        Args:
            cluster: The cluster and this process's task.
            heartbeat_timeout: Seconds without an answer after which a task counts as lost.
            spared: Job names of tasks without which the others continue, besides the evaluator.
            only: Job names of the tasks that the chief watches; none for all.
            at_loss: Called with the error instead of ending this process, whose calls to the lost task
                never return.
        """
        watched = [
            task for task in cluster.tasks() if task != cluster.lead and (not only or task.type in only)
        ]
        if cluster.task is None:
            watched = []
        elif cluster.task != cluster.lead:
            watched = [cluster.lead]
        super().__init__(self._watch, watched)
        self._cluster, self._heartbeat_timeout = cluster, heartbeat_timeout
        self._spared, self._at_loss = {*spared, _EVALUATOR}, at_loss or end_process

    def _watch(self, task: Task) -> None:
        address, silence = self._cluster.address(task), SilenceClock()
        is_reported = is_left_to_launcher = False
        peers, is_gone = peers_at(address), False
        has_answered = task.type != _EVALUATOR
        while not self.is_over.wait(SECONDS_BETWEEN_CHECKS):
            is_alive = answers(address)
            silent_for = silence.after(is_alive)
            if is_alive:
                if (
                    is_gone
                ):  # it may be back on another machine, and nothing ends the connections to the first
                    before, peers = peers, peers_at(address)
                    break_connections(before - peers)
                is_reported, has_answered, is_gone = False, True, False
                continue
            is_gone = True
            if task.type == _EVALUATOR and (not has_answered or is_alive is False):
                continue  # it may begin later, and end earlier
            limit = _SECONDS_BEFORE_OWN_ERROR if is_alive is False else self._heartbeat_timeout
            if silent_for < limit or self.is_over.is_set():
                continue
            state = "gone" if is_alive is False else "silent"
            if task.type not in self._spared:
                self._end(f"{task} at {address}", f"{state} for {silent_for:.0f} s", task, silent_for)
                silence = SilenceClock()  # report again later if this process does not end
                continue
            if not is_reported:
                _log.warning(
                    "%s at %s %s for %.0f s: training continues without it", task, address, state, silent_for
                )
                # A task that refuses connections is gone, or restarts.
                is_left_to_launcher = is_alive is None and report_silent(str(task), silent_for)
                is_reported = True
            patience = limit + (_SECONDS_FOR_LAUNCHER if is_left_to_launcher else 0.0)
            if is_alive is None and silent_for >= patience:
                break_connections(peers)  # again and again: a stopped task accepts new ones

    def _end(self, where: str, problem: str, task: Task, seconds: float) -> None:
        """End this process, whose main thread waits in a call that nothing else ends."""
        if report_silent(str(task), seconds):
            # The launcher ends the silent task, and then the calls to that task fail.
            _log.warning("%s %s", where, problem)
            return
        remedy = "Its own log may say why; start the cluster again"
        self._at_loss(TaskLost(where, problem, remedy=remedy))


def end_process(error: TfdistError) -> None:
    """Print an error, and end this process, whose main thread waits in a call that nothing else ends."""
    print(f"tfdist: {error}", file=sys.stderr, flush=True)
    logging.shutdown()
    os._exit(error.exit_code)
