"""Describe a job that was submitted: its handle, its state, its tasks and its folder."""

import enum
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tfdist.errors import ConfigError, shown


class State(enum.Enum):
    """The state of a submitted job."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_final(self) -> bool:
        """Return whether the job has ended, or the engine has forgotten it."""
        return self not in (State.PENDING, State.RUNNING)


class Handle(NamedTuple):
    """The name of a submitted job: `slurm://cluster/123`."""

    engine: str
    place: str
    number: str

    def __str__(self) -> str:
        return f"{self.engine}://{self.place}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Handle":
        """Read a handle as `tfdist submit` prints it.

        Raises:
            ConfigError: The text is no handle.
        """
        match = re.fullmatch(r"([a-z][a-z0-9_.-]*)://([^/\s]*)/([^/\s]+)", text)
        if match is None:
            raise ConfigError("handle", expected="one such as slurm://cluster/123", received=shown(text))
        return cls(*match.groups())


@dataclass(frozen=True)
class Submission:
    """A job that was submitted.

    Attributes:
        handle: The handle.
        name: The name of the job.
        run_dir: The folder of the run, where its tasks see it.
        tasks: The names of its tasks, in the order of their ranks.
        made_by: The command line that the user typed, without the values of secrets.
        at: When, for people, in this machine's time zone.
        url: Where the user finds the files of the run, if `run_dir` exists only for the tasks.
        ended: The state in which the job has ended, once the engine has told it; empty before.
    """

    handle: Handle
    name: str
    run_dir: Path
    tasks: tuple[str, ...]
    made_by: str
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
    url: str = ""
    ended: str = ""

    @property
    def place(self) -> str:
        """Return where the user finds the files of the run."""
        return self.url or str(self.run_dir)
