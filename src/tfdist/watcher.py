"""Notice a task of the cluster that is silent or gone, for which TensorFlow would wait for ever.

A call to a task that is stopped, or whose link is cut, neither returns nor fails, and nothing ends it but the
end of its process. So each watched task has a thread here that asks it, once a second, whether it is there.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection

from tfdist.cluster import ClusterConfig, Task
from tfdist.errors import TaskLost
from tfdist.launcher import report_silent
from tfdist.probing import answers

__all__ = ["Watcher"]

_SECONDS_BETWEEN_QUESTIONS = 1.0
# Where a process has ended, TensorFlow's calls to it fail, and the error says more; but not all of them.
_SECONDS_FOR_TENSORFLOW = 10.0
_MOST_COUNTED_AT_ONCE = 5.0  # this process itself may have been stopped for a while
_log = logging.getLogger("tfdist")


class Watcher:
    """Watch the tasks that this one waits for, for as long as the block lasts.

    The chief watches all, and the others watch the chief. Where one is lost, this process ends with 138,
    which those who watch it notice in turn.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        *,
        silence: float,
        spared: Collection[str] = (),
        at_loss: Callable[[TaskLost], object] | None = None,
    ) -> None:
        """Say what is watched.

        Args:
            cluster: The cluster and this process's task.
            silence: Seconds without an answer after which a task counts as lost.
            spared: Job names of tasks without which the others go on.
            at_loss: What to do, in place of ending, with a process that calls to a lost task hold up.
        """
        watched = [each for each in cluster.training().tasks() if each != cluster.lead]
        if cluster.task is None:
            watched = []
        elif cluster.task != cluster.lead:
            watched = [cluster.lead]
        self._silence, self._spared, self._at_loss = silence, frozenset(spared), at_loss or _end_process
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(task, cluster.address(task)), daemon=True)
            for task in watched
        ]

    def __enter__(self) -> "Watcher":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self, task: Task, address: str) -> None:
        silent_for, is_told, before = 0.0, False, time.monotonic()
        while not self._ended.wait(_SECONDS_BETWEEN_QUESTIONS):
            answer = answers(address)
            now = time.monotonic()
            silent_for += min(now - before, _MOST_COUNTED_AT_ONCE)
            before = now
            if answer:
                silent_for, is_told = 0.0, False
                continue
            limit = _SECONDS_FOR_TENSORFLOW if answer is False else self._silence
            if silent_for < limit or self._ended.is_set():
                continue
            what = "gone" if answer is False else "silent"
            if task.type not in self._spared:
                self._end(f"{task} at {address}", f"{what} for {silent_for:.0f} s", task, silent_for)
                silent_for = 0.0  # to be said once more if that changes nothing
            elif not is_told:
                _log.warning("%s at %s %s for %.0f s: goes on without it", task, address, what, silent_for)
                if answer is None:  # one that refuses is gone, or was started again and is not up yet
                    report_silent(str(task), silent_for)
                is_told = True

    def _end(self, who: str, problem: str, task: Task, seconds: float) -> None:
        """End this process, whose main thread waits in a call that nothing else ends."""
        if report_silent(str(task), seconds):
            # The launcher ends it, which the calls to it notice.
            _log.warning("%s %s", who, problem)
            return
        remedy = "Its own log may say why; start the cluster again"
        self._at_loss(TaskLost(who, problem, remedy=remedy))


def _end_process(error: TaskLost) -> None:
    print(f"tfdist: {error}", file=sys.stderr, flush=True)
    logging.shutdown()
    os._exit(error.exit_code)
