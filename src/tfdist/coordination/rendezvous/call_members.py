"""Lead the rendezvous: call the other tasks, and decide when all of them begin."""

import socket
import threading
from collections.abc import Mapping, Sequence

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.grpc_health_probe import connected, reason_of
from tfdist.coordination.rendezvous.messages import (
    LONGEST_REASON,
    SECONDS_TO_SPEAK,
    Call,
    Marks,
    Refused,
    exchange,
)
from tfdist.coordination.wait_for_tasks import Awaiting
from tfdist.errors import TaskLost

_SECONDS_BETWEEN_CALLS = 1.0
_SECONDS_BETWEEN_RETRIES = 0.1
_MOST_REASONS = 16  # in a message, which may not be longer than what a task reads


class Lead:
    """The task that calls all others, each from one thread, until all answer at the same time."""

    def __init__(
        self, cluster: ClusterConfig, marks: Marks, awaiting: Awaiting, least: int | None, wait: float
    ) -> None:
        self._cluster, self._marks, self._awaiting = cluster, marks, awaiting
        self._least, self._wait = least, wait
        others = [task for task in cluster.tasks() if task != cluster.lead]
        self._changed = threading.Condition()
        self._missing = dict.fromkeys(others, "not called yet")
        self._answered = dict.fromkeys(others, 0)
        self._round = 1
        self._start: list[str] = []
        self._is_over = False

    def call(self) -> tuple[Task, ...]:
        """Return the tasks that take part, after all of them have been told."""
        for task in self._answered:
            threading.Thread(target=self._call_one, args=(task,), daemon=True).start()
        with self._changed:
            try:
                while True:
                    self._changed.wait_for(lambda: not self._missing, timeout=_SECONDS_BETWEEN_CALLS)
                    members = self._members()
                    # A task may have left since its last answer: only members that answer again now can
                    # begin.
                    if self._is_enough(members) and self._all_answer(members):
                        return self._begin_with(members)
                    if self._missing and self._awaiting.is_due:
                        self._awaiting.report(self._missing)
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

    def _begin_with(self, members: tuple[Task, ...]) -> tuple[Task, ...]:
        self._start = [str(task) for task in members]
        if not self._all_answer(members):
            lost_tasks = [task for task in members if task in self._missing]
            names = " and ".join(map(self._cluster.with_address, lost_tasks))
            problem = f"lost {names or 'a task'} just before all were to begin"
            raise TaskLost("make_strategy", problem, remedy="Start the cluster again")
        return members

    def _all_answer(self, members: Sequence[Task]) -> bool:
        """Call these tasks now; return whether all of them answer."""
        self._round += 1
        self._changed.notify_all()
        others = [task for task in members if task in self._answered]

        def have_answered() -> bool:
            return all(self._answered[task] == self._round for task in others)

        def is_settled() -> bool:
            return have_answered() or any(task in self._missing for task in others)

        self._changed.wait_for(is_settled, timeout=2 * SECONDS_TO_SPEAK)
        return have_answered()

    def _call_one(self, task: Task) -> None:
        while not self._is_over:
            try:
                with connected(self._cluster.address(task)) as connection:
                    self._serve_member(task, connection)
                return
            except Refused as error:
                why = str(error)
            except OSError as error:
                why = reason_of(error)
            with self._changed:
                self._missing[task] = why
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_over, timeout=_SECONDS_BETWEEN_RETRIES)

    def _serve_member(self, task: Task, connection: socket.socket) -> None:
        pause = _SECONDS_BETWEEN_RETRIES  # the first call may come before the lead has tried the other tasks
        while True:
            with self._changed:
                current_round, start = self._round, self._start
                # The second case: this task answered too late to take part.
                if self._is_over or (start and str(task) not in start):
                    return
                missing = _short_enough({other: why for other, why in self._missing.items() if other != task})
            exchange(connection, Call(self._marks, str(task), missing, start))
            with self._changed:
                self._missing.pop(task, None)
                self._answered[task] = current_round
                self._changed.notify_all()
                if start:
                    return
                self._wait_while_in(current_round, pause)
            pause = min(2 * pause, _SECONDS_BETWEEN_CALLS)

    def _wait_while_in(self, current_round: int, seconds: float) -> None:
        """Wait, but not for other tasks' answers: each would be a reason to call all others again."""
        self._changed.wait_for(lambda: self._is_over or self._round != current_round, timeout=seconds)


def _short_enough(missing: Mapping[Task, str]) -> dict[str, str]:
    """Return who is missing and why; of many tasks, the reasons of the first ones, which others print."""
    return {
        str(task): why[:LONGEST_REASON] if place < _MOST_REASONS else ""
        for place, (task, why) in enumerate(missing.items())
    }
