"""Describe a job: the command that is every task of a cluster, and the number of tasks of each role."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster.config import Task
from tfdist.trainer.engine_sections import EngineSection

__all__ = ["RUN_DIR", "Job"]

RUN_DIR = "{run_dir}"  # in a word of a command: the folder of the run, which depends on the job's number


@dataclass(frozen=True)
class Job:
    """A job for any engine.

    Attributes:
        name: A short name, for the scheduler's lists.
        command: The words of the command that all tasks run; a word may contain `RUN_DIR`.
        counts: The number of tasks of each role; roles get the ranks in alphabetical order.
        folder: The folder of all runs. The folder of one run has the name and number of the job.
        made_by: The command line that the user typed.
        section: The `engine:` section of the config.
        alone: The roles of tasks that are started again alone when they are lost; the others continue.
    """

    name: str
    command: tuple[str, ...]
    counts: Mapping[str, int]
    folder: Path
    made_by: str
    section: EngineSection = field(default_factory=EngineSection)
    alone: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of their ranks."""
        return tuple(Task(role, i) for role, count in sorted(self.counts.items()) for i in range(count))

    @property
    def roles(self) -> str:
        """Return the counts as TFDIST_ROLES has them."""
        return ",".join(f"{role}={count}" for role, count in sorted(self.counts.items()))

    def run_dir(self, number: str) -> Path:
        """Return the folder of the run with a number, which may be a variable of a shell."""
        return self.folder / f"{self.name}-{number}"
