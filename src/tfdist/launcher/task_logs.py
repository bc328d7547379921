"""Open and read the log files of the tasks, and tell which of their lines are not for the screen."""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import ConfigError
from tfdist.launcher.share_cores_and_gpus import own_gpus

_CHUNK = 64 * 1024
# Colours and cursor movements of one task would spoil the lines of the others. The log file keeps them.
# \x80 to \x9f are control characters too (C1): \x9b begins a sequence as \x1b[ does.
_CONTROL_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Messages of TensorFlow's C++ at level INFO. Since 2.20 no variable silences them before TensorFlow is
# loaded.
_TENSORFLOW_INFO = (
    r"WARNING: All log messages before absl::InitializeLog\(\) .*|I\d{4} [\d:.]+ +\d+ \S+:\d+\] .*"
    r"|To enable the following instructions: .* rebuild TensorFlow .*"
)
# Each TensorFlow with CUDA reports this as an error where there is no GPU.
_NO_GPU = r"E\d{4} [\d:.]+ +\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: .*"
# A mirrored worker reports this as an error if worker 0 ends its script a moment before it does.
# If worker 0 is lost, tfdist and the launcher say so.
_LEADER_HAS_ENDED = (
    r"E\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] \S+::StartAbort UNAVAILABLE: Failed to send RPC to coordination .*"
    r"(?:\nAdditional GRPC error information .* while calling /tensorflow\.CoordinationService/Heartbeat:"
    r"(?:\n:UNKNOWN:Error received from peer .*)?)?"
)
# Lines of tfdist whose content the live view shows, or the launcher's first lines.
_SHOWN_OTHERWISE = (
    r"tfdist: (?:read the cluster from .*|\S+ (?:serves at grpc://|has found the chief at ).*"
    r"|strategy \w+: .*|using the \w+ transport\b.*|the chief has ended, so .* ends too)"
)
_log = logging.getLogger("tfdist")


class TaskLog(NamedTuple):
    """A task's open log file, and the position at which this launch begins in it."""

    path: Path
    fd: int
    start: int


@contextlib.contextmanager
def opened_logs(cluster: ClusterConfig, run_dir: Path) -> Iterator[dict[Task, TaskLog]]:
    """Open the log of each task of a launch, and lock the folder."""
    with contextlib.ExitStack() as stack:
        logs = {}
        for task in cluster.tasks():
            path = task_log_path(run_dir, task)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Append: a run that continues an earlier one keeps the earlier log.
                file = stack.enter_context(open(path, "ab", 0))
            except OSError as error:
                problem = f"cannot write {path}: {error.strerror}"
                raise ConfigError("run_dir", problem, remedy="Choose one that you may write to") from None
            _lock(file.fileno(), path)
            logs[task] = TaskLog(path, file.fileno(), file.seek(0, os.SEEK_END))
        yield logs


def task_log_path(run_dir: Path, task: Task | str) -> Path:
    """Return the file with the output of a task, such as `worker:1`."""
    return run_dir / "logs" / f"{str(task).replace(':', '-')}.log"


def _lock(log: int, path: Path) -> None:
    """Lock the folder against other launches for as long as this launch or any of its processes lives."""
    try:
        # The tasks inherit the descriptor, and the lock with it.
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        problem = f"another launch is writing {path}"
        raise ConfigError("run_dir", problem, remedy="Choose another one, or end that launch") from None
    except OSError as error:  # a file system without locks
        _log.warning(
            "cannot lock %s (%s): two launches there would not notice each other", path, error.strerror
        )


class LogTail:
    """A reader of whole lines that are added to a log file."""

    def __init__(self, name: str, path: Path, start: int) -> None:
        self.name = name
        self._file = open(path, "rb")  # noqa: SIM115  # closed by close()
        self._file.seek(start)
        self._rest = b""

    def read(self, *, to_the_end: bool = False) -> str:
        """Return new lines, about 64 KiB at most; `to_the_end` includes a last line without a line end."""
        while data := self._file.read(_CHUNK):
            lines, end, self._rest = (self._rest + data).rpartition(b"\n")
            if len(self._rest) > _CHUNK:  # a very long line is shown in parts
                lines, end, self._rest = lines + end + self._rest, b"\n", b""
            if end:
                return _printable_text(lines + end)
        if to_the_end and self._rest:
            lines, self._rest = self._rest + b"\n", b""
            return _printable_text(lines)
        return ""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def last_lines(path: Path, start: int, count: int) -> list[str]:
    """Return the last lines that were added to a log file after a position; none if it was removed."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _CHUNK))
            lines = _printable_text(file.read()).rstrip().split("\n")
    except FileNotFoundError:
        return []
    return [line[:500] for line in lines[-count:]]


def _printable_text(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    if "\r" in text:  # of a line that was overwritten, show the last version
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return without_control_sequences(text)


def without_control_sequences(text: str) -> str:
    """Return a text without what a terminal would take for commands."""
    return _CONTROL_SEQUENCES.sub("", text)


class NotesForLogs:
    """A filter of the lines of all tasks."""

    def __init__(self, *, is_live: bool, verbosity: int) -> None:
        """Choose what to leave out.

        Args:
            is_live: Whether a live view shows the states of the tasks.
            verbosity: 0 for a filter, more for none.
        """
        self._is_live = is_live
        patterns = [_TENSORFLOW_INFO, _LEADER_HAS_ENDED]
        if not own_gpus():
            patterns.append(_NO_GPU)
        if is_live:
            patterns.append(_SHOWN_OTHERWISE)
        self._notes = None if verbosity > 0 else re.compile(rf"^(?:{'|'.join(patterns)})\n", re.MULTILINE)
        self._first: dict[str, str] = {}  # each line of tfdist, and the task that has written it first

    def without(self, text: str, task: str) -> str:
        """Return whole lines of a task without those for its log file alone.

        A live view shows a line of tfdist that several tasks write for the first of them only.
        """
        if self._notes is None:
            return text
        text = self._notes.sub("", text)
        if not self._is_live or "tfdist: " not in text:
            return text
        return "".join(
            line
            for line in text.splitlines(True)
            if not line.startswith("tfdist: ") or self._first.setdefault(line, task) == task
        )
