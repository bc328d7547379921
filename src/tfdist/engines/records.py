"""Keep a record of each job that this user submits: its tasks and folder, which no scheduler keeps."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tfdist._utils.files import write_json
from tfdist.engines.job_handle_and_state import Handle, Submission
from tfdist.errors import ConfigError

__all__ = ["find_submission", "record", "state_folder", "submissions"]


def record(submission: Submission) -> None:
    """Write the record of a job."""
    path = _path(submission.handle)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {"handle": str(submission.handle), "run_dir": str(submission.run_dir)}
    write_json(path, {**vars(submission), **texts})


def find_submission(handle: Handle) -> Submission:
    """Return the record of a job.

    Raises:
        ConfigError: This user has submitted no such job from here.
    """
    path = _path(handle)
    if not path.exists():
        remedy = "`tfdist list` has those that were"
        raise ConfigError(str(handle), "was not submitted by this user on this machine", remedy=remedy)
    return _read(path)


def submissions() -> Iterator[Submission]:
    """Yield the records, the newest first."""
    records = map(_read, _folder().glob("*.json"))
    yield from sorted(records, key=lambda one: (one.at, one.handle), reverse=True)


def state_folder() -> Path:
    """Return the folder in which tfdist keeps what it knows of this user's jobs."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tfdist"


def _read(path: Path) -> Submission:
    values = json.loads(path.read_text())
    values["handle"] = Handle.parse(values["handle"])
    values["run_dir"] = Path(values["run_dir"])
    values["tasks"] = tuple(values["tasks"])
    return Submission(**values)


def _path(handle: Handle) -> Path:
    return _folder() / f"{quote(str(handle), safe='')}.json"


def _folder() -> Path:
    return state_folder() / "submitted"
