"""Decide which tasks start again and when, when the others must end, and what renews the restarts."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

NEVER = float("inf")
SHORT_LIFETIME = 60.0  # seconds
_LONGEST_PAUSE = 60.0
_MOST_DOUBLINGS = 6  # 64 s, which is more than the longest pause
_ALL_TASKS = ""  # used in place of a task's name


class Backoff:
    """The pause before a restart, by how often a task, or all together, was lost soon after its start.

    The first restart is immediate. A task that is soon lost again may lack something that needs time, such
    as free memory. So each further pause is twice as long.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def pause_after(self, seconds: float) -> float:
        """Return the seconds to wait before the next start, after a lifetime of this many seconds."""
        self._in_a_row = self._in_a_row + 1 if seconds < SHORT_LIFETIME else 0
        if self._in_a_row <= 1:
            return 0.0
        return min(2.0 ** min(self._in_a_row - 1, _MOST_DOUBLINGS), _LONGEST_PAUSE)


class NewCheckpoints:
    """The steps of the checkpoints that the chief has saved, over all of its lives."""

    def __init__(self) -> None:
        self._highest = self._last = 0

    def begin_life(self) -> None:
        """Note that the chief starts, maybe from an older checkpoint than it has saved."""
        self._last = 0

    def is_new(self, step: int) -> bool:
        """Return whether a checkpoint that the chief saves now is progress.

        In one life of the chief, steps that begin again at a lower number are those of another training.
        """
        if step < self._last:
            self._highest = 0
        self._last, is_new = step, step > self._highest
        self._highest = max(self._highest, step)
        return is_new


class Reaction(NamedTuple):
    """The reaction to the end of a task."""

    asked: bool  # whether it was told to end, or its chief was already done: its status is no failure
    again: bool  # whether it starts again
    alone: bool = False  # whether without the others
    pause: float | None = None  # the seconds until the restart that its end begins, if it begins one
    restart: int = 0  # the number of that restart since the last new checkpoint


class RestartPolicy:
    """The decisions about the tasks of a cluster, which run in rounds; its owner carries them out.

    A lost task is started again within the round if it may restart alone. Otherwise the round ends, and the
    next one starts all tasks.

    Attributes:
        allowed: The number of restarts without a new checkpoint in between.
        restart_at: The times at which lost tasks start again in this round.
        is_lead_done: Whether the lead has succeeded in this round.
        is_ending: Whether the tasks of this round have been told to end.
        end_at: The time at which they must be told to end.
        kill_at: The time at which those that still run must be killed.
        next_round: The time at which all tasks start again.
    """

    def __init__(
        self,
        *,
        lead: str,
        servers: Iterable[str],  # they serve the lead, and would wait for it without end
        evaluators: Iterable[str],  # they have work left after the lead is done; all others need not succeed
        alone: Iterable[str],
        restarts: int,
        grace: float,  # the seconds between SIGTERM and SIGKILL
        linger: float,  # the seconds that the others have to end after the lead
        lost: int,  # the exit status of a task that asks for a restart
        terminate: Callable[[Collection[str]], None],  # tells those of the tasks that run to end
    ) -> None:
        self._lead, self._servers, self._alone = lead, frozenset(servers), frozenset(alone)
        self._evaluators = frozenset(evaluators)
        self._grace, self._linger, self._lost, self._terminate = grace, linger, lost, terminate
        self.allowed = self._restarts = restarts
        self._backoff: defaultdict[str, Backoff] = defaultdict(Backoff)
        self.begin_round()

    def begin_round(self) -> None:
        """Forget the round before."""
        self._began: dict[str, float] = {}
        self._restarted: set[str] = set()
        self.restart_at: dict[str, float] = {}
        self.is_lead_done = self.is_ending = False
        self.end_at = self.kill_at = self.next_round = NEVER

    def note_start(self, name: str) -> None:
        """Note that a task starts."""
        self._began[name] = time.monotonic()
        self._began.setdefault(_ALL_TASKS, self._began[name])

    def renew(self) -> None:
        """Count the restarts from zero: the chief has saved a new checkpoint."""
        self._restarts = self.allowed

    def react(self, name: str, code: int) -> Reaction:
        """Decide what the end of a task means for it and the others."""
        is_lost = code < 0 or code == self._lost
        if self.is_ending or self.next_round < NEVER:
            return Reaction(self.is_ending, self.next_round < NEVER)
        if code == 0:
            if name == self._lead:
                self._begin_linger()
        elif is_lost and self.is_lead_done and name not in self._evaluators:
            return Reaction(asked=True, again=False)
        elif is_lost and self._restarts:
            return self._restart(name)
        else:
            self.stop()
        return Reaction(asked=False, again=False)

    def _restart(self, name: str) -> Reaction:
        self._restarts -= 1
        alone, now = name in self._alone, time.monotonic()
        restarted = name if alone else _ALL_TASKS
        pause = self._backoff[restarted].pause_after(now - self._began[restarted])
        if alone:
            self.restart_at[name] = now + pause
        else:
            self.restart_all(pause)
        return Reaction(False, True, alone, pause, self.allowed - self._restarts)

    def lose_start(self) -> float | None:
        """Count a task that was lost before all were started, and begin the next round after a pause.

        Return the pause; None if no restart is left.
        """
        if not self._restarts:
            return None
        self._restarts -= 1
        pause = self._backoff[_ALL_TASKS].pause_after(0.0)
        self.restart_all(pause)
        return pause

    def restart_all(self, pause: float = 0.0) -> None:
        """End this round now, and begin the next one after a pause."""
        self.end_at = time.monotonic()
        self.next_round = self.end_at + pause

    def _begin_linger(self) -> None:
        self.is_lead_done = True
        self.end_at = min(self.end_at, time.monotonic() + self._linger)
        self.restart_at = {name: at for name, at in self.restart_at.items() if name in self._evaluators}
        # A server that was just started again may not have met its chief, and would wait for it.
        self._terminate(self._servers & self._restarted)

    def take_due(self) -> list[str]:
        """Return the lost tasks that must start again now."""
        due = [name for name, when in self.restart_at.items() if when <= time.monotonic()]
        for name in due:
            del self.restart_at[name]
        self._restarted.update(due)
        return due

    def may_restart(self, name: str) -> bool:
        """Return whether a lost task still starts again in this round, for one whose start takes time."""
        is_needed = not self.is_lead_done or name in self._evaluators
        return is_needed and not self.is_ending and self.next_round == NEVER

    def stop(self) -> None:
        """End this round now, and start no task again."""
        self.allowed, self._restarts, self.next_round = 0, 0, NEVER
        self.end_at = min(self.end_at, time.monotonic())

    def begin_ending(self) -> bool:
        """Set the time to kill; return whether the tasks must be told to end, which happens once a round."""
        self.end_at = NEVER
        self.restart_at.clear()
        if self.is_ending:
            return False
        self.is_ending = True
        self.kill_at = min(self.kill_at, time.monotonic() + self._grace)
        return True
