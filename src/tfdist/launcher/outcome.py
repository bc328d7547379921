"""Describe the result of a launch: how each task ended, and which one failed first."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist._utils.run_process import signal_name
from tfdist.cluster.config import Task
from tfdist.errors import LOST, TfdistError

_PREFIX = "tfdist: "  # of the message that ends a command
_CODES_AFTER_SIGTERM = (0, LOST, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True)
class TaskExit:
    """The end of one task.

    Attributes:
        task: The task.
        pid: Its process.
        code: Its exit status, or minus the number of the signal that ended it.
        asked: Whether the launcher had told the task to end, or the chief that it served was already done.
            Then its status is no failure.
        log: The file with its output.
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
        """Return whether the task failed by itself and was not started again."""
        return self.code != 0 and not self.asked and not self.again

    @property
    def was_survived(self) -> bool:
        """Return whether the task failed by itself and was started again."""
        return self.code != 0 and not self.asked and self.again

    @property
    def lost(self) -> bool:
        """Return whether a restart may help: a signal ended the task, or its status asks for a restart."""
        return self.code < 0 or self.code == LOST

    def __str__(self) -> str:
        by = f"{signal_name(-self.code)}, " if self.code < 0 else ""
        return f"exited with {self.code} ({by}pid {self.pid})"


@dataclass(frozen=True)
class LaunchReport:
    """The result of a successful launch.

    Attributes:
        exits: How each task ended, in order of time; a task that was started again has several.
        is_private: Whether the tasks ran in a private network.
        seconds: The duration of the launch.
        has_joined: Whether the chief has connected to its cluster by `tfdist.start`, `make_strategy` or
            `connect`.
    """

    exits: tuple[TaskExit, ...]
    is_private: bool
    seconds: float
    has_joined: bool


class LaunchError(TfdistError, RuntimeError):
    """A cluster did not succeed: the first failure, or the signal that stopped it.

    Attributes:
        exit_code: 2 if the first task to fail ended with that; 138 if it was lost, there was no room to start
            it again, the chief saved its work after a signal, or the supervisor was killed. 128 + n after
            signal n. Else 1.
        exits: How each task ended, in order of time.
        tail: The last lines of the log of the first task to fail.
    """

    def __init__(
        self,
        where: str,
        problem: str,
        *,
        exit_code: int = 1,
        exits: Sequence[TaskExit],
        tail: Sequence[str] = (),
    ) -> None:
        super().__init__(where, problem)
        self.exit_code = exit_code
        self.exits = tuple(exits)
        self.tail = tuple(tail)

    def as_the_task_said(self) -> TfdistError:
        """Return the error with the last message of the task that failed, for a log that will be deleted."""
        messages = [line for line in self.tail if line.startswith(_PREFIX)] or list(self.tail)
        if not messages:  # stopped by a signal
            return self
        error = TfdistError(self.where, messages[-1].removeprefix(_PREFIX))
        error.exit_code = self.exit_code
        return error

    @classmethod
    def of_failures(cls, exits: Sequence[TaskExit], tail: Sequence[str], restarts: int) -> "LaunchError":
        """Return the error that names the first task that failed by itself."""
        first = next(end for end in exits if end.failed)
        # Others may have failed by themselves before they reacted to SIGTERM.
        count = sum(end.failed or end.code not in _CODES_AFTER_SIGTERM for end in exits if not end.again)
        among = f", the first of {count} failures" if count > 1 else ""
        after = f", after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
        code = LOST if first.lost else 2 if first.code == 2 else 1
        problem = f"{first}{among}{after}; log: {os.fspath(first.log)}"
        return cls(str(first.task), problem, exit_code=code, exits=exits, tail=tail)

    @classmethod
    def of_signal(cls, number: int, exits: Sequence[TaskExit], lead: Task) -> "LaunchError":
        """Return the error that names the signal that stopped the job."""
        problem = f"stopped by {signal.Signals(number).name}; every task has ended"
        return cls("launcher", problem, exit_code=_status_after(number, exits, lead), exits=exits)

    @classmethod
    def of_supervisor(
        cls, problem: str, exits: Sequence[TaskExit], lead: Task, number: int | None
    ) -> "LaunchError":
        """Return the error of a launch whose supervisor another process has ended, perhaps after a signal."""
        code = LOST if number is None else _status_after(number, exits, lead)
        return cls("launcher", problem, exit_code=code, exits=exits)


def _status_after(number: int, exits: Sequence[TaskExit], lead: Task) -> int:
    """Return the exit status of a job that a signal has stopped: 138 if the lead has saved the work.

    Servers and evaluators, which have nothing to save, end with 138 in any case.
    """
    of_lead = [end for end in exits if end.task == lead and not end.again]
    return LOST if of_lead and of_lead[-1].code == LOST else 128 + number
