"""Find what tasks have printed, and how the job has ended, in files of the run's folder.

For engines whose tasks write to a folder that the user's machine sees too.
"""

from collections.abc import Callable, Iterator, Sequence
from glob import escape
from pathlib import Path

from tfdist.engines.follow_logs import Line, read_logs
from tfdist.engines.job_handle_and_state import State, Submission
from tfdist.errors import StorageError
from tfdist.launcher.progress_for_engines import SAVED_STEP
from tfdist.launcher.progress_text import describe_progress
from tfdist.launcher.report_messages import read_reports
from tfdist.launcher.run_events import Progressed

_SECONDS_BETWEEN_READS = 0.5
_BYTES_OF_A_PIECE = 1 << 20  # of a log


def log_path(run_dir: Path, rank: int | str) -> Path:
    """Return the file with the output of the task of a rank, which may be a variable of a shell."""
    return run_dir / "logs" / f"rank-{rank}.log"


def exit_status_path(run_dir: Path) -> Path:
    """Return the file with the exit status of the job."""
    return run_dir / "exit_status"


def progress_path(run_dir: Path) -> Path:
    """Return the file with the chief's last report of progress."""
    return run_dir / "logs" / "progress.json"


def saved_step_path(run_dir: Path) -> Path:
    """Return the file with the step of the chief's last checkpoint, beside its report."""
    return progress_path(run_dir).with_name(SAVED_STEP)


def last_progress(submission: Submission) -> str | None:
    """Return in words how far a training has come; None if its chief has written nothing."""
    try:
        data = progress_path(submission.run_dir).read_bytes()
    except OSError:  # the state is known all the same
        return None
    reports = [(0.0, report) for report in read_reports(data) if isinstance(report, Progressed)]
    return describe_progress(reports) if reports else None


def state_of_exit_status(submission: Submission) -> tuple[State, str] | None:
    """Return the state of a job that has written its exit status; None for another one.

    Raises:
        StorageError: The folder of the run cannot be read.
    """
    return _state_of_folder(submission.run_dir)


def state_of_array(submission: Submission) -> tuple[State, str] | None:
    """Return the state of an array whose jobs have ended, a failed one first; None for another job.

    Raises:
        StorageError: The folder of a run cannot be read.
    """
    unknown = State.UNKNOWN, "no exit status"
    states = [
        (state, f"{index}: {words}")
        for index, folder in array_folders(submission).items()
        for state, words in [_state_of_folder(folder) or unknown]
    ]
    order = (State.FAILED, State.UNKNOWN, State.SUCCEEDED)
    return min(states, key=lambda state: order.index(state[0]), default=None)


def _state_of_folder(run_dir: Path) -> tuple[State, str] | None:
    path = exit_status_path(run_dir)
    try:
        status = path.read_text("utf-8", "backslashreplace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    return State.SUCCEEDED if status == "0" else State.FAILED, f"exit status {status}"


def array_folder(submission: Submission, index: str) -> Path:
    """Return the folder of one job of an array."""
    return submission.run_dir.with_name(f"{submission.run_dir.name}_{index}")


def array_folders(submission: Submission) -> dict[str, Path]:
    """Return the folders of an array's jobs by their indices, as far as they have begun.

    Raises:
        StorageError: The folder of all runs cannot be read.
    """
    stem, runs = f"{submission.run_dir.name}_", submission.run_dir.parent
    try:
        folders = sorted(runs.glob(f"{escape(stem)}*"))
    except OSError as error:
        raise _unreadable(runs, error) from None
    found = {folder.name.removeprefix(stem): folder for folder in folders}
    return {index: folder for index, folder in found.items() if index.isdecimal()}


def lines_of(
    submission: Submission,
    tasks: Sequence[str],
    is_over: Callable[[], bool] | None,
    path_of: Callable[[Path, str], Path] | None = None,
) -> Iterator[Line]:
    """Yield the name of a task and a line that it has printed, for each line.

    If the job is an array, the names begin with the index of one of its jobs: `3/worker:0`.

    Args:
        submission: The job.
        tasks: The names of tasks of the job.
        is_over: Whether the job has ended, to continue until then; None for the lines of now.
        path_of: The file of a task in the folder of a run; None for that of its rank.

    Raises:
        StorageError: A file cannot be read; the lines of all others came before.
    """
    positions: dict[Path, int] = {}

    def logs(ended: bool) -> Iterator[tuple[str, Iterator[Line]]]:
        for name, path in _files(submission, tasks, path_of):
            yield name, _new_lines(name, path, positions, ended)

    return read_logs(logs, is_over, _SECONDS_BETWEEN_READS)


def _files(
    submission: Submission, tasks: Sequence[str], path_of: Callable[[Path, str], Path] | None
) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each task, in the folder of the run and in those of an array's jobs."""
    folders = {"": submission.run_dir}
    folders |= {f"{index}/": folder for index, folder in array_folders(submission).items()}
    for prefix, folder in folders.items():
        for name in tasks:
            path = path_of(folder, name) if path_of else log_path(folder, submission.tasks.index(name))
            yield prefix + name, path


def _new_lines(name: str, path: Path, positions: dict[Path, int], ended: bool) -> Iterator[Line]:
    """Yield the lines of a file after those read before; a line without an end only if told."""
    for data in _whole_lines(path, positions.get(path, 0), ended):
        positions[path] = positions.get(path, 0) + len(data)
        yield from ((name, line) for line in data.decode(errors="backslashreplace").splitlines())


def _whole_lines(path: Path, position: int, ended: bool) -> Iterator[bytes]:
    """Yield what a file has after a position, some lines at a time: a log may be larger than the memory."""
    rest: list[bytes] = []  # of a line whose end was not read yet
    try:
        with path.open("rb") as file:
            file.seek(position)
            while piece := file.read(_BYTES_OF_A_PIECE):
                lines, newline, begun = piece.rpartition(b"\n")
                if newline:
                    yield b"".join([*rest, lines, newline])
                    rest = []
                rest.append(begun)
    except FileNotFoundError:  # the task has not printed yet
        return
    except OSError as error:
        raise _unreadable(path, error) from None
    if ended and any(rest):
        yield b"".join(rest)


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(str(path), f"cannot be read: {error.strerror or error}")
