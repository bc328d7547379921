"""The protocol of an engine, which a plug-in implements too, and the engines by name."""

import enum
import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import NamedTuple, Protocol

from tfdist.engines.job import Job
from tfdist.errors import ConfigError, did_you_mean, shown

__all__ = ["ENTRY_POINTS", "Engine", "Handle", "State", "engine_names", "find_engine"]

ENTRY_POINTS = "tfdist.engines"  # the group in which a package names a class of its own


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


def _slurm() -> Engine:
    from tfdist.engines.slurm import Slurm

    return Slurm()


_ENGINES: dict[str, Callable[[], Engine]] = {"slurm": _slurm}


def engine_names() -> list[str]:
    """Return the names of all engines, those of plug-ins included."""
    return sorted({*_ENGINES, *entry_points(group=ENTRY_POINTS).names})


def find_engine(name: str) -> Engine:
    """Return the engine of a name.

    Raises:
        ConfigError: There is no such engine.
    """
    if make := _ENGINES.get(name):
        return make()
    for point in entry_points(group=ENTRY_POINTS, name=name):
        engine: Engine = point.load()()
        return engine
    raise ConfigError("engine", f"there is no '{name}'", remedy=did_you_mean(name, engine_names()))
