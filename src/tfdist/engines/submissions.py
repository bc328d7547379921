"""Remember the jobs that this user has submitted, with what a scheduler does not keep: tasks and folders."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from tfdist._utils.files import write_json
from tfdist.engines.engine import Handle, State
from tfdist.engines.registry import find_engine
from tfdist.errors import ConfigError

__all__ = ["Submission", "find_submission", "state_of", "submissions"]


@dataclass(frozen=True)
class Submission:
    """A job that was submitted.

    Attributes:
        handle: The handle as text.
        name: The name of the job.
        run_dir: The folder of the run.
        tasks: The names of its tasks, in the order of their ranks.
        made_by: The command line that the user typed.
        at: When, in seconds since 1970.
    """

    handle: str
    name: str
    run_dir: str
    tasks: tuple[str, ...]
    made_by: str
    at: float

    def save(self) -> None:
        """Write the record."""
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{quote(self.handle, safe='')}.json", asdict(self))

    @property
    def age(self) -> str:
        """Return how long ago the job was submitted."""
        seconds = max(0, int(time.time() - self.at))
        for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
            if seconds >= size:
                return f"{seconds // size} {unit}"
        return f"{seconds} s"

    def log(self, task: str) -> Path:
        """Return the file with a task's output.

        Raises:
            ConfigError: The job has no such task.
        """
        if task not in self.tasks:
            raise ConfigError("--task", expected=f"one of {', '.join(self.tasks)}", received=task)
        return Path(self.run_dir) / "logs" / f"rank-{self.tasks.index(task)}.log"


def find_submission(handle: Handle) -> Submission:
    """Return the record of a job.

    Raises:
        ConfigError: This user has submitted no such job from here.
    """
    for submission in submissions():
        if submission.handle == str(handle):
            return submission
    remedy = "`tfdist list` has those that were"
    raise ConfigError(str(handle), "was not submitted by this user on this machine", remedy=remedy)


def state_of(submission: Submission) -> tuple[State, str]:
    """Return the state of a job, and the engine's words for it.

    Schedulers forget jobs some minutes after their end. Then the exit status that the job has written tells.
    """
    handle = Handle.parse(submission.handle)
    state, words = find_engine(handle.engine).state(handle)
    path = Path(submission.run_dir) / "exit_status"
    if state is State.UNKNOWN and path.exists():
        status = path.read_text().strip()
        return State.SUCCEEDED if status == "0" else State.FAILED, f"exit status {status}"
    return state, words


def submissions() -> Iterator[Submission]:
    """Yield the records, the newest first."""
    records = [json.loads(path.read_text()) for path in _folder().glob("*.json")]
    for record in sorted(records, key=lambda record: -record["at"]):
        yield Submission(**{**record, "tasks": tuple(record["tasks"])})


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tfdist" / "submitted"
