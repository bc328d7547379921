"""Describe to the supervisor what it starts and when it ends that."""

import json
import os
from typing import NamedTuple


class TaskPlan(NamedTuple):
    """A task to start."""

    name: str
    env: dict[str, str]
    mark: str  # one of the variables, as NAME=value; it marks what the task has started
    cores: tuple[int, ...]  # none for any
    log: int  # the descriptor of its log
    progress: int | None  # the descriptor by which it reports
    serves: bool  # whether it serves the lead, and would wait for it without end
    evaluates: bool  # whether it has work left after the lead is done; all others need not succeed then
    alone: bool  # whether it starts again alone if it is lost


class SupervisorPlan(NamedTuple):
    """The task of the supervisor; texts have one character per byte."""

    command: list[str]
    tasks: list[TaskPlan]
    lead: str  # the task whose success is that of the launch
    scratch: str  # the folder to remove at the end
    network_isolation: str
    grace: float
    linger: float
    restarts: int
    loads_once: bool
    lost: int  # the exit status of a task that asks for a restart

    def to_json(self) -> bytes:
        """Return the plan as one line."""
        return json.dumps(self).encode() + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> "SupervisorPlan":
        """Return the plan that a line contains."""
        plan = cls(*json.loads(line))
        return plan._replace(tasks=[TaskPlan(*task) for task in plan.tasks])


def as_latin1(word: str | os.PathLike[str]) -> str:
    """Return a text in which each character represents one byte: file names may have any encoding."""
    return os.fsencode(word).decode("latin-1")


def as_bytes(text: str) -> bytes:
    """Return the bytes of a text with one character per byte."""
    return text.encode("latin-1")
