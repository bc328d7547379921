"""Say what came of a launch: how each task ended, and which one is to blame."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster import Task
from tfdist.errors import TfdistError

__all__ = ["LaunchError", "LaunchReport", "TaskExit"]

_OF_ENDING = (0, 138, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True)
class TaskExit:
    """Hold how one task ended.

    Attributes:
        task: Which one.
        pid: The process that it was.
        code: Its exit status, or minus the number of the signal that ended it.
        asked: Whether the launcher had told it to end, or it served a chief that was done already; what it
            ended with is then no failure.
        log: What it printed.
        again: Whether it was started again, alone or with all the others.
    """

    task: Task
    pid: int
    code: int
    asked: bool
    log: Path
    again: bool = False

    @property
    def failed(self) -> bool:
        """Say whether it failed by itself, for good."""
        return self.code != 0 and not self.asked and not self.again

    @property
    def was_survived(self) -> bool:
        """Say whether it failed by itself, and the job went on all the same."""
        return self.code != 0 and not self.asked and self.again

    @property
    def lost(self) -> bool:
        """Say whether starting again may help: a signal ended it, or it asks for that."""
        return self.code < 0 or self.code == 138

    def __str__(self) -> str:
        return f"exited with {self.code} ({self._signal()}pid {self.pid})"

    def _signal(self) -> str:
        if self.code >= 0:
            return ""
        try:
            return f"{signal.Signals(-self.code).name}, "
        except ValueError:  # a real-time signal has no name
            return f"signal {-self.code}, "


@dataclass(frozen=True)
class LaunchReport:
    """Hold what came of a launch that went well.

    Attributes:
        exits: How each task ended, the first to end first, and each time where it was started again.
        is_private: Whether the tasks lived in a private network.
        seconds: How long it took.
    """

    exits: tuple[TaskExit, ...]
    is_private: bool
    seconds: float


class LaunchError(TfdistError, RuntimeError):
    """Report a cluster that did not reach its end: the first failure, or the signal that stopped it.

    Attributes:
        exit_code: 2 or 138 where the first task to fail ended with that; 138 also where a task was lost so
            often that the restarts are used up, or saved its work after a signal; 128 + n after signal n;
            else 1.
        exits: How each task ended, the first to end first.
        tail: The last lines of the log of the task to blame.
    """

    def __init__(
        self,
        where: str,
        problem: str,
        *,
        exit_code: int = 1,
        exits: Sequence[TaskExit] = (),
        tail: Sequence[str] = (),
    ) -> None:
        super().__init__(where, problem)
        self.exit_code = exit_code
        self.exits = tuple(exits)
        self.tail = tuple(tail)

    @property
    def may_pass(self) -> bool:
        """Say whether starting again may help: the first task to fail was lost."""
        first = next((each for each in self.exits if each.failed), None)
        return first is not None and first.lost

    @classmethod
    def of_failures(cls, exits: Sequence[TaskExit], tail: Sequence[str], restarts: int) -> "LaunchError":
        """Blame the first task that failed by itself, for good."""
        first = next(each for each in exits if each.failed)
        # Others may have failed before they took notice of being told to end.
        count = sum(each.failed or each.code not in _OF_ENDING for each in exits if not each.again)
        among = f", the first of {count} failures" if count > 1 else ""
        after = f", after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
        code = 138 if first.lost and restarts else first.code if first.code in (2, 138) else 1
        problem = f"{first}{among}{after}; log: {os.fspath(first.log)}"
        return cls(str(first.task), problem, exit_code=code, exits=exits, tail=tail)

    @classmethod
    def of_signal(cls, number: int, exits: Sequence[TaskExit]) -> "LaunchError":
        """Name the signal that stopped the job."""
        saved = any(each.code == 138 for each in exits)
        problem = f"stopped by {signal.Signals(number).name}; every task has ended"
        return cls("launcher", problem, exit_code=138 if saved else 128 + number, exits=exits)
