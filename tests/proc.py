"""Find processes of this machine in /proc by what they were started with, and stop them."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "naming", "stop", "task_of", "with_variable"]


class Process(NamedTuple):
    """Describe a process: its number, its command line, and its variables."""

    pid: int
    command: str
    environ: dict[str, str]

    @property
    def task(self) -> str | None:
        """Return the name of the task that TF_CONFIG makes it, if there is one."""
        task = json.loads(self.environ.get("TF_CONFIG", "{}")).get("task")
        return f"{task['type']}:{task['index']}" if task else None


def with_variable(name: str, value: str) -> list[Process]:
    """Return the processes, zombies aside, that were started with a variable of this value."""
    found = _with_text("environ", f"{name}={value}")
    return [process for process in found if process.environ.get(name) == value]


def naming(folder: Path) -> list[Process]:
    """Return the other processes, zombies aside, that name a folder on their command line."""
    return [process for process in _with_text("cmdline", str(folder)) if process.pid != os.getpid()]


def task_of(folder: Path, task: str) -> int:
    """Return the number of the process that is a task of the run in a folder."""
    found = [process.pid for process in naming(folder) if process.task == task]
    assert found, f"no process is {task} of {folder}"
    return found[0]


def stop(pid: int) -> None:
    """Stop a process, and return when none of its threads runs any more, which `os.kill` does not wait for."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path("/proc", str(pid), "task")
    while any(_state(thread) not in "TZX" for thread in os.listdir(threads)):
        time.sleep(0.001)


def _state(thread: str) -> str:
    """Return the letter that Linux has for what a thread does; X if it has ended."""
    try:
        return Path("/proc", thread, "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _with_text(file: str, text: str) -> Iterator[Process]:
    """Return the processes one of whose files in /proc has a text in it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            if os.fsencode(text) in Path("/proc", pid, file).read_bytes():
                pairs = (word.partition("=") for word in _words(pid, "environ"))
                environ = {name: value for name, _, value in pairs}
                yield Process(int(pid), " ".join(_words(pid, "cmdline")), environ)


def _words(pid: str, file: str) -> list[str]:
    """Return the words of a file, each of which ends with a zero byte."""
    return os.fsdecode(Path("/proc", pid, file).read_bytes()).split("\0")[:-1]
