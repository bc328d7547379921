"""Run one task as a process of its own, for an engine that talks to it by pipes.

This program outlives whoever has started it for as long as the task needs to save its work: it is no child of
that process. It imports only the standard library.

Standard input: a line with the plan as JSON, then the line `end`. Its end without that line means that
whoever has started this is gone: the task is killed. Standard output: a line with the task's number, and one
with its exit status, each as JSON.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO


def main() -> None:
    """Start the task of the plan, and wait for its end."""
    plan = json.loads(sys.stdin.buffer.readline())
    if os.fork():
        os._exit(0)  # so that this process has no parent that kills its children with itself
    os.setsid()
    try:
        with open(plan["log"], "ab", 0) as log:
            task = subprocess.Popen(
                plan["command"],
                env=plan["env"],
                cwd=plan["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        _tell(error=f"{error.filename or plan['command'][0]}: {error.strerror}")
        return
    _tell(pid=task.pid)
    grace, is_told = float(plan["grace"]), threading.Event()
    threading.Thread(target=_follow, args=(sys.stdin.buffer, task.pid, grace, is_told), daemon=True).start()
    status = task.wait()
    if is_told.is_set() and status == -signal.SIGTERM:
        _wait_for_rest(task.pid, grace)
    _signal(task.pid, signal.SIGKILL)  # what it has left
    _tell(status=status)
    os._exit(0)  # the thread that reads commands would hold standard input at the interpreter's end


def _wait_for_rest(session: int, seconds: float) -> None:
    """Wait for what a shell script runs: a shell that SIGTERM ends does not, and its commands save."""
    deadline = time.monotonic() + seconds
    while _signal(session, 0) and time.monotonic() < deadline:
        time.sleep(0.1)


def _follow(commands: BinaryIO, session: int, grace: float, is_told: threading.Event) -> None:
    """End the task when that is asked for; kill it when nobody can ask any more."""
    for line in commands:
        if line.strip() == b"end" and not is_told.is_set():
            is_told.set()
            _signal(session, signal.SIGTERM)
            timer = threading.Timer(grace, _signal, (session, signal.SIGKILL))
            timer.daemon = True
            timer.start()
    if not is_told.is_set():
        _signal(session, signal.SIGKILL)


def _signal(session: int, number: int) -> bool:
    """Send a signal to all process groups of a session; return whether it has processes."""
    has_processes = False
    for group in {session, *_groups_in(session)}:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
            has_processes = True
    return has_processes


def _groups_in(session: int) -> set[int]:
    """Return the process groups of a session, of which `timeout` in a shell script begins one."""
    groups = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            # pid (name) state parent group session …
            words = path.read_text("ascii", "replace").rpartition(")")[2].split()
            if words[0] != "Z" and int(words[3]) == session:
                groups.add(int(words[2]))
    return groups


def _tell(**event: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
