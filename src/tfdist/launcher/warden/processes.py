"""Ask the system about processes, and tie them to each other."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

__all__ = ["adopt_orphans", "children_of", "die_with_parent", "is_stopped", "with_variable"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends; elsewhere than on Linux, init does."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, also if it has ended already."""
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above, and the kernel will send nothing
        os.kill(os.getpid(), number)


def children_of(parent: int) -> list[int]:
    """List the children of a process, zombies too."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile
            if int(_stat(pid)[1]) == parent:
                found.append(int(pid))
    return found


def is_stopped(pid: int) -> bool:
    """Say whether a process is stopped, as SIGSTOP does it, as far as the system tells."""
    with contextlib.suppress(OSError):  # it has ended, or there is no /proc
        return _stat(pid)[0] == "T"
    return False


def with_variable(*assignments: str) -> list[int]:
    """List the processes that were started with one of these variables, as far as we may see; no zombies."""
    if sys.platform != "linux":
        return []
    wanted = {assignment.encode() for assignment in assignments}
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if not wanted.isdisjoint(Path("/proc", pid, "environ").read_bytes().split(b"\0")):
                found.append(int(pid))
    return found


def _stat(pid: int | str) -> list[str]:
    """Give what the kernel says of a process: its state, its parent, and more."""
    # pid (name) state ppid …, where the name may hold blanks and brackets
    return Path("/proc", str(pid), "stat").read_text("ascii", "replace").rpartition(")")[2].split()


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(each) for each in (value, 0, 0, 0))):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")
