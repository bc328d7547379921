"""The protocol of an engine, which a plug-in implements too; the handle and the state of a job."""

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from tfdist.engines.job import Job
from tfdist.errors import ConfigError, shown

__all__ = ["Engine", "Handle", "State"]


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
        """Return whether the job has ended."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Handle(NamedTuple):
    """What names a submitted job: `slurm://cluster/123`."""

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
        match = re.fullmatch(r"([a-z][a-z0-9_]*)://([^/\s]*)/([^/\s]+)", text)
        if match is None:
            raise ConfigError("handle", expected="one such as slurm://cluster/123", received=shown(text))
        return cls(*match.groups())


class Engine(Protocol):
    """What runs jobs elsewhere. Options are those of the engine itself, by its own names."""

    name: str

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return what the engine reads, as a user would write it; its first lines say how to submit it."""

    def submit(self, job: Job, options: Mapping[str, str]) -> Handle:
        """Submit the job."""

    def state(self, handle: Handle) -> tuple[State, str]:
        """Return the state of a job, and the engine's own words for it."""

    def cancel(self, handle: Handle) -> None:
        """End a job."""
