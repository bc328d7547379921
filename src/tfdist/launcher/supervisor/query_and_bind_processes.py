"""Ask the system about processes, and bind the lives of processes to each other."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from .call_libc import call_libc

__all__ = ["adopt_orphans", "children_of", "die_with_parent", "in_session", "is_stopped", "with_variable"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends; init is the parent outside Linux."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends, or send it now if it has ended."""
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above, and the kernel will send nothing
        os.kill(os.getpid(), number)


def children_of(parent: int) -> list[int]:
    """Return the children of a process, including zombies."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile
            if int(_stat(pid)[1]) == parent:
                pids.append(int(pid))
    return pids


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP has stopped a process; False if the system does not tell."""
    with contextlib.suppress(OSError):  # the process has ended, or there is no /proc
        return _stat(pid)[0] == "T"
    return False


def in_session(leader: int) -> list[int]:
    """Return the processes of a session, without zombies."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile
            state, _, _, session, *_ = _stat(pid)
            if state != "Z" and int(session) == leader:
                pids.append(int(pid))
    return pids


def with_variable(assignment: str) -> list[int]:
    """Return the processes that were started with a variable, as far as we may see, without zombies."""
    if sys.platform != "linux":
        return []
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile, or of another user
            if assignment.encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                pids.append(int(pid))
    return pids


def _stat(pid: int | str) -> list[str]:
    """Return what the kernel says about a process: state, parent, group, session, and more."""
    # pid (name) state ppid …, where the name may contain blanks and brackets
    return Path("/proc", str(pid), "stat").read_text("ascii", "replace").rpartition(")")[2].split()


def _prctl(option: int, value: int) -> None:
    call_libc("prctl", ctypes.c_int(option), *(ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)))
