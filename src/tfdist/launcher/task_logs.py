"""Open, lock and read the log files of the tasks."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import ConfigError
from tfdist.launcher.screen_filter import without_control_sequences

_CHUNK = 64 * 1024
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
