"""Describe a launch on Ray: the command of its tasks, their files, and what they need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.coordination.wait_for_tasks import START_TIMEOUT
from tfdist.launcher.environment import DEFAULT_GRACE
from tfdist.launcher.launch_tasks import SECONDS_FOR_THE_EVALUATOR
from tfdist.trainer.sections.engine import RaySection

FILES = "{files}"  # in a word of the command: the folder of the files that the launch has sent


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The command of the tasks of a launch, and where they run.

    Attributes:
        command: The words of the command of every task.
        counts: The number of tasks of each role.
        run_dir: The folder of the run; each task's node has the task's log there.
        files: Files that are sent to each task; words of the command begin with FILES to name them.
        results: Files that each task may leave, which are sent back at its end; FILES may begin them.
        alone: The roles whose lost tasks are started again while the others continue.
        section: What the tasks need, where they are placed, and how often they are started again.
        variables: Variables of all tasks.
        threads: The threads of each task; None for as many as it has CPUs.
        start_timeout: The seconds to wait for resources, at each start of all tasks.
        grace: The seconds that a task has to end after SIGTERM.
    """

    command: tuple[str, ...]
    counts: Mapping[str, int]
    run_dir: Path
    files: Mapping[str, bytes] = field(default_factory=dict)
    results: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    section: RaySection = field(default_factory=RaySection)
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    start_timeout: float = START_TIMEOUT
    grace: float = DEFAULT_GRACE

    @property
    def linger(self) -> float:
        """Return the seconds that the others have to end after the chief."""
        return SECONDS_FOR_THE_EVALUATOR if "evaluator" in self.counts else self.grace

    def bundle(self, role: str) -> dict[str, float]:
        """Return what a task of a role needs."""
        wanted = {"CPU": 1.0, **self.section.resources.get(role, {})}
        return {name: float(amount) for name, amount in wanted.items() if amount}
