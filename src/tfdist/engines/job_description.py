"""Describe a job: the command that is every task of a cluster, and the number of tasks of each role."""

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.cluster.roles_and_task_counts import DEFAULT_PORT
from tfdist.engines.job_handle_and_state import Handle, Submission
from tfdist.errors import ConfigError
from tfdist.launcher.environment import DEFAULT_GRACE, thread_variables
from tfdist.trainer.sections.engine import EngineSection

# Words of a command that depend on where and when it runs.
PYTHON = "{python}"  # the interpreter
CONFIG = "{config}"  # the config file
RUN_DIR = "{run_dir}"  # the folder of the run

# As words of a shell script have them: the folder of the run, the copy of the config in it, and the address
# of the run in an object store.
SHELL_RUN_DIR = '"$run_dir"'
SHELL_CONFIG = f"{SHELL_RUN_DIR}/config.yaml"
SHELL_PLACE = '"$place"'


@dataclass(frozen=True)
class Job:
    """A job for any engine.

    Attributes:
        name: A short name, for the scheduler's lists.
        command: The words of the command that all tasks run; some may be `PYTHON`, `CONFIG` or `RUN_DIR`.
        counts: The number of tasks of each role; roles get the ranks in alphabetical order.
        folder: The folder of all runs. The folder of one run has the name and number of the job. With an
            address it has what the engine itself writes, such as logs and the exit status.
        made_by: The command line that the user typed, as one line, without the values of secrets.
        config: The config file; None for a script.
        threads: The number of threads of each task that the config asks for; None for one per core.
        grace: The seconds that a task has to end after SIGTERM, where the engine has no option of its own.
        section: The `engine:` section of the config.
        alone: The roles of tasks that are started again alone when they are lost; the others continue.
        is_single: Whether it is one process without a cluster; then it counts as one worker.
        port: The port of each task, where each has a machine of its own.
        address: The address of all runs in an object store, for engines that take one, or nothing.
        run: The name of an earlier run, which this job continues; empty for a new one.
        earlier: The handle of a job of that run, if the user has named it.
    """

    name: str
    command: tuple[str, ...]
    counts: Mapping[str, int]
    folder: Path
    made_by: str
    config: Path | None = None
    threads: int | None = None
    grace: float = DEFAULT_GRACE
    section: EngineSection = field(default_factory=EngineSection)
    alone: tuple[str, ...] = ()
    is_single: bool = False
    port: int = DEFAULT_PORT
    address: str = ""
    run: str = ""
    earlier: Handle | None = None

    @functools.cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of their ranks."""
        return tuple(Task(role, i) for role, count in sorted(self.counts.items()) for i in range(count))

    @functools.cached_property
    def config_text(self) -> str | None:
        """Return the text of the config file as it is now, for a job that may start later; None for a script.

        Raises:
            ConfigError: The file cannot be read.
        """
        if self.config is None:
            return None
        try:
            return self.config.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot be read: {error}"
            raise ConfigError(str(self.config), problem, remedy="Name a YAML file") from None

    @functools.cached_property
    def chief_rank(self) -> int:
        """Return the rank of the task that saves and reports: the chief, or the first worker."""
        names = [str(task) for task in self.tasks]
        return next((names.index(name) for name in ("chief:0", "worker:0") if name in names), 0)

    @functools.cached_property
    def _one_of_each(self) -> ClusterConfig:
        return ClusterConfig.of_addresses({Task(role, 0): f"{role}:{self.port}" for role in self.counts})

    @property
    def serving_roles(self) -> tuple[str, ...]:
        """Return the roles whose tasks serve others, such as ps."""
        return tuple(role for role in sorted(self.counts) if self._one_of_each.with_task(role).serves)

    @property
    def computing_roles(self) -> tuple[str, ...]:
        """Return the roles whose tasks compute steps."""
        return tuple(sorted({task.type for task in self._one_of_each.computing_tasks()}))

    @property
    def roles(self) -> str:
        """Return the counts as TFDIST_ROLES has them."""
        return ",".join(f"{role}={count}" for role, count in sorted(self.counts.items()))

    @property
    def thread_variables(self) -> dict[str, str]:
        """Return the variables with the number of threads, if the config asks for one."""
        return thread_variables(self.threads)

    @property
    def shell_variables(self) -> str:
        """Return the lines of a shell script that set run_dir and place, of which place may be missing.

        The variable number of the script has the number of the run.
        """
        folders = {"run_dir": str(self.folder), "place": self.address}
        run = self.run or f"{shlex.quote(self.name)}-$number"
        return "\n".join(f"{name}={shlex.quote(folder)}/{run}" for name, folder in folders.items() if folder)

    @property
    def shell_place(self) -> str:
        """Return where the tasks write the run, as a word of a shell script with `shell_variables`."""
        return SHELL_PLACE if self.address else SHELL_RUN_DIR

    def words(self, *, python: str, run_dir: str, config: str | None = None) -> tuple[str, ...]:
        """Return the command for machines with this interpreter, run folder and config file."""
        meant = {PYTHON: python, RUN_DIR: run_dir, CONFIG: str(self.config) if config is None else config}
        return tuple(meant.get(word, word) for word in self.command)

    def submission(self, handle: Handle, run_dir: Path | None = None) -> Submission:
        """Return what is known of this job after it was submitted."""
        run_dir = self.run_dir(handle.number) if run_dir is None else run_dir
        return Submission(
            handle=handle,
            name=self.name,
            run_dir=run_dir,
            tasks=tuple(map(str, self.tasks)),
            made_by=self.made_by,
            url=self.address and self.address_of(run_dir.name),
        )

    def run_dir(self, number: str) -> Path:
        """Return the folder of the run with a number, which may be a variable of a shell."""
        return self.folder / (self.run or f"{self.name}-{number}")

    def address_of(self, name: str) -> str:
        """Return the address of the run that has this name in the object store."""
        return f"{self.address}/{name}"


def train_command(config: str, run_dir: str, changes: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a command that trains as a config file and the changes to it say."""
    words = (PYTHON, "-m", "tfdist.train", "--config", config, "--run_dir", run_dir)
    return (*words, *(f"--set={change}" for change in changes))


def shell_command(words: Iterable[str]) -> str:
    """Return words for a shell script with the `Job.shell_variables`."""
    as_they_are = (SHELL_RUN_DIR, SHELL_CONFIG, SHELL_PLACE)
    return " ".join(word if word in as_they_are else shlex.quote(word) for word in words)


def without_references(text: str) -> str:
    """Return a text that Kubernetes, and Vertex AI, pass on as it is.

    They replace $(NAME) by a variable, and $$ by $.
    """
    return re.sub(r"\$\$|\$(?=\()", lambda match: 2 * match[0], text)
