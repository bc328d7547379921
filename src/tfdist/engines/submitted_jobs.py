"""Keep a record of each job that this user submits: its tasks and folder, which no scheduler keeps."""

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from tfdist._utils.check_and_expand_paths import exists, expanded_path
from tfdist._utils.write_files import write_json
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.errors import ConfigError, StorageError

_REMEDY = "Set XDG_STATE_HOME to a folder of yours"


def record(submission: Submission) -> None:
    """Write the record of a job, which only this user may read.

    Raises:
        StorageError: The record cannot be written.
    """
    texts = {"handle": str(submission.handle), "run_dir": str(submission.run_dir)}
    write_json(_path(submission.handle), {**vars(submission), **texts}, is_private=True)


def record_end(submission: Submission, state: State) -> None:
    """Write the state of a job that has ended into its record, and remove that of one that runs again."""
    ended = state.value if state in (State.SUCCEEDED, State.FAILED, State.CANCELLED) else ""
    if ended != submission.ended:
        with contextlib.suppress(StorageError):  # its engine is asked again
            record(replace(submission, ended=ended))


def find_submission(handle: Handle) -> Submission:
    """Return the record of a job.

    Raises:
        ConfigError: This user has submitted no such job from here.
    """
    path = _path(handle)
    if not exists(path):
        remedy = "`tfdist list` has those that were"
        raise ConfigError(str(handle), "was not submitted by this user on this machine", remedy=remedy)
    return _read(path)


def submissions() -> tuple[list[Submission], list[ConfigError]]:
    """Return the jobs on record, the newest first, and an error for each record that is damaged."""
    found, damaged = [], []
    for path in _paths():
        try:
            found.append(_read(path))
        except ConfigError as error:
            damaged.append(error)
    return sorted(found, key=lambda one: (one.at, one.handle), reverse=True), damaged


def state_folder() -> Path:
    """Return the folder in which tfdist keeps what it knows of this user's jobs."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return expanded_path(Path(state), "XDG_STATE_HOME", _REMEDY) / "tfdist"


def _read(path: Path) -> Submission:
    try:
        _make_private(path)
        values = json.loads(path.read_text("utf-8"))
        values["handle"] = Handle.parse(values["handle"])
        values["run_dir"] = Path(values["run_dir"])
        values["tasks"] = tuple(values["tasks"])
        return Submission(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is no record of a job: {type(error).__name__}: {error}"
        raise ConfigError(str(path), problem, remedy="Remove it") from None


def _make_private(path: Path) -> None:
    """Keep others from a record of an earlier version, which they could read."""
    with contextlib.suppress(OSError):  # of a folder that this user may only read
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _paths() -> list[Path]:
    try:
        return sorted(path for path in _folder().iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(str(_folder()), f"cannot be read: {error.strerror}", remedy=_REMEDY) from None


def _path(handle: Handle) -> Path:
    return _folder() / f"{quote(str(handle), safe='')}.json"


def _folder() -> Path:
    return state_folder() / "submitted"
