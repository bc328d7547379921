"""Start a task as a process of its own."""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from .processes import die_with_parent

__all__ = ["start"]


def start(task: Mapping[str, Any], command: Sequence[str], output: int) -> tuple[int, str]:
    """Start one task that prints to a pipe; give its pid, and why it could not be started if so."""
    error_reader, error_writer = os.pipe()
    warden = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # the user's limit of processes
        return 0, f"fork: {error.strerror}"
    if pid == 0:
        try:
            _become(task, warden, output)
            environment = {_bytes(name): _bytes(value) for name, value in task["env"].items()}
            os.execvpe(_bytes(command[0]), [_bytes(word) for word in command], environment)  # noqa: S606
        except (OSError, ValueError) as error:
            os.write(error_writer, str(getattr(error, "strerror", None) or error).encode())
        finally:
            os._exit(127)
    os.close(error_writer)
    with open(error_reader, "rb") as stream:  # ends when exec closes the other side
        reason = stream.read().decode()
    if reason:
        os.waitpid(pid, 0)
    return pid, reason


def _become(task: Mapping[str, Any], warden: int, output: int) -> None:
    """Make the forked child what the task needs: a session of its own that dies with the warden."""
    os.setsid()
    die_with_parent(warden)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, a shell's & or nohup the others
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if task["cores"]:
        os.sched_setaffinity(0, task["cores"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if task["progress"] is not None:
        os.set_inheritable(task["progress"], True)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")  # a character stands for a byte: names of files may be in any encoding
