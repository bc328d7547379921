"""Call the roll: be the task that says when all begin."""

import socket
import threading
from collections.abc import Sequence

from tfdist.awaiting import Awaiting
from tfdist.cluster import ClusterConfig, Task
from tfdist.errors import TaskLost
from tfdist.probing import connected, reason_of
from tfdist.rollcall.speech import SECONDS_TO_SPEAK, Call, Refused, exchange

__all__ = ["Lead"]

_SECONDS_BETWEEN_CALLS = 1.0
_SECONDS_TO_TRY_AGAIN = 0.1


class Lead:
    """Call all others, each from a thread of its own, until they are there at the same time."""

    def __init__(
        self, cluster: ClusterConfig, mark: str, awaiting: Awaiting, least: int | None, wait: float
    ) -> None:
        self._cluster, self._mark, self._awaiting = cluster, mark, awaiting
        self._least, self._wait = least, wait
        others = [task for task in cluster.tasks() if task != cluster.lead]
        self._changed = threading.Condition()
        self._missing = dict.fromkeys(others, "not called yet")
        self._answered = dict.fromkeys(others, 0)
        self._round = 1
        self._start: list[str] = []
        self._is_over = False

    def call(self) -> tuple[Task, ...]:
        """Give who takes part, when all of them have been told."""
        for task in self._answered:
            threading.Thread(target=self._call_one, args=(task,), daemon=True).start()
        with self._changed:
            try:
                while True:
                    self._changed.wait_for(lambda: not self._missing, timeout=_SECONDS_BETWEEN_CALLS)
                    members = self._members()
                    # Some may have gone since they last spoke: the last word is for those who answer anew.
                    if self._is_enough(members) and self._all_answer(members):
                        return self._told(members)
                    if self._missing and self._awaiting.is_due:
                        self._awaiting.tell(self._missing)
            finally:
                self._is_over = True
                self._changed.notify_all()

    def _members(self) -> tuple[Task, ...]:
        return tuple(task for task in self._cluster.tasks() if task not in self._missing)

    def _is_enough(self, members: Sequence[Task]) -> bool:
        if not self._missing:
            return True
        workers = sum(task.type == "worker" for task in members)
        return self._least is not None and workers >= self._least and self._awaiting.seconds >= self._wait

    def _told(self, members: tuple[Task, ...]) -> tuple[Task, ...]:
        self._start = [str(task) for task in members]
        if not self._all_answer(members):
            lost = [task for task in members if task in self._missing]
            names = " and ".join(f"{task} at {self._cluster.address(task)}" for task in lost)
            problem = f"lost {names or 'somebody'} as all were to begin"
            raise TaskLost("make_strategy", problem, remedy="Start the cluster again")
        return members

    def _all_answer(self, members: Sequence[Task]) -> bool:
        """Call these at once, and say whether all of them answer."""
        self._round += 1
        self._changed.notify_all()
        others = [task for task in members if task in self._answered]

        def have_answered() -> bool:
            return all(self._answered[task] == self._round for task in others)

        def is_known() -> bool:
            return have_answered() or any(task in self._missing for task in others)

        self._changed.wait_for(is_known, timeout=2 * SECONDS_TO_SPEAK)
        return have_answered()

    def _call_one(self, task: Task) -> None:
        while not self._is_over:
            try:
                with connected(self._cluster.address(task)) as line:
                    self._talk(task, line)
                return
            except Refused as error:
                why = str(error)
            except OSError as error:
                why = reason_of(error)
            with self._changed:
                self._missing[task] = why
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_over, timeout=_SECONDS_TO_TRY_AGAIN)

    def _talk(self, task: Task, line: socket.socket) -> None:
        while True:
            with self._changed:
                now, start = self._round, self._start
                if self._is_over or (start and str(task) not in start):  # it has come too late
                    return
                missing = {str(each): why[:200] for each, why in self._missing.items() if each != task}
            exchange(line, Call(self._mark, str(task), missing, start))
            with self._changed:
                self._missing.pop(task, None)
                self._answered[task] = now
                self._changed.notify_all()
                if start:
                    return
                if self._round == now and not self._is_over:
                    self._changed.wait(_SECONDS_BETWEEN_CALLS)
