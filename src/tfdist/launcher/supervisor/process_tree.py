"""Ask the system about processes, and bind the lives of processes to each other."""

import contextlib
import ctypes
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

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
    return _processes(lambda pid: int(_stat(pid)[1]) == parent)


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP has stopped a process; False if the system does not tell."""
    with contextlib.suppress(OSError):  # the process has ended, or there is no /proc
        return _stat(pid)[0] == "T"
    return False


def in_session(leader: int) -> list[int]:
    """Return the processes of a session, without zombies."""

    def is_in_it(pid: int) -> bool:
        state, _, _, session, *_ = _stat(pid)
        return state != "Z" and int(session) == leader

    return _processes(is_in_it)


def groups_in_sessions(leaders: Collection[int]) -> dict[int, set[int]]:
    """Return the process groups of sessions, by session, as far as they have processes that are no zombies.

    `timeout`, and a shell with `set -m`, begin groups of their own. There are none outside of Linux.
    """
    groups: defaultdict[int, set[int]] = defaultdict(set)

    def note(pid: int) -> bool:
        state, _, group, session, *_ = _stat(pid)
        if state != "Z" and int(session) in leaders:
            groups[int(session)].add(int(group))
        return False

    if leaders and sys.platform == "linux":
        _processes(note)
    return groups


def signal_sessions(leaders: Collection[int], number: signal.Signals) -> None:
    """Send a signal to all process groups in the sessions of these leaders."""
    for group in set(leaders).union(*groups_in_sessions(leaders).values()):
        # The group has ended, or all of it has changed its user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def reap_child() -> tuple[int, int, int] | None:
    """Collect a child that has ended; return its pid, its exit code and, on Linux, its session.

    Return None if none has ended.
    """
    pid, session = -1, 0
    with contextlib.suppress(ChildProcessError):
        if sys.platform == "linux":
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            pid, session = ended.si_pid, os.getsid(ended.si_pid)
        pid, status = os.waitpid(pid, os.WNOHANG)
        return (pid, os.waitstatus_to_exitcode(status), session) if pid else None
    return None


def with_variable(assignment: str) -> list[int]:
    """Return the processes that were started with a variable, as far as we may see, without zombies."""
    if sys.platform != "linux":
        return []
    wanted = assignment.encode()
    return _processes(lambda pid: wanted in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"))


def _processes(is_wanted: Callable[[int], bool]) -> list[int]:
    pids = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208  # names are wanted
        with contextlib.suppress(OSError):  # ended meanwhile, or of another user
            if is_wanted(pid):
                pids.append(pid)
    return pids


def _stat(pid: int) -> list[str]:
    """Return what the kernel says about a process: state, parent, group, session, and more."""
    # pid (name) state ppid …, where the name may contain blanks and brackets
    return Path("/proc", str(pid), "stat").read_text("ascii", "replace").rpartition(")")[2].split()


def _prctl(option: int, value: int) -> None:
    call_libc("prctl", ctypes.c_int(option), *(ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)))


def call_libc(function: str, *arguments: Any) -> None:
    """Call a function of the C library that Python lacks; raise OSError where it does not return 0."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)
