"""Remember the jobs that this user has submitted, with what a scheduler does not keep: tasks and folders."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
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
        at: When, for people, in this machine's time zone.
    """

    handle: str
    name: str
    run_dir: str
    tasks: tuple[str, ...]
    made_by: str
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    def save(self) -> None:
        """Write the record."""
        path = _path(self.handle)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self))

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
    path = _path(str(handle))
    if not path.exists():
        remedy = "`tfdist list` has those that were"
        raise ConfigError(str(handle), "was not submitted by this user on this machine", remedy=remedy)
    return _read(path)


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
    records = map(_read, _path("any").parent.glob("*.json"))
    yield from sorted(records, key=lambda record: (record.at, record.handle), reverse=True)


def _read(path: Path) -> Submission:
    record = json.loads(path.read_text())
    return Submission(**{**record, "tasks": tuple(record["tasks"])})


def _path(handle: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tfdist" / "submitted" / f"{quote(handle, safe='')}.json"
