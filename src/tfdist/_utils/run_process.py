"""Run a process to its end, and say in one line why it failed."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Ended(NamedTuple):
    """The end of a process.

    Attributes:
        status: Its exit status; negative for the signal that ended it, 1 if it took too long.
        output: What it wrote to its standard output; nothing if it took too long.
        problem: Why it failed, in one line; empty if it did not.
    """

    status: int
    output: bytes
    problem: str


def run_process(words: Sequence[str], *, seconds: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Run a process, with this one's environment by default, and kill it if it takes too long."""
    try:
        run = subprocess.run(words, env=environ, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Ended(1, b"", f"not done within {seconds:g} s")
    problem = ""
    if run.returncode < 0:
        problem = f"{signal_name(-run.returncode)} ended the process"
    elif run.returncode:
        problem = last_line(run.stderr) or f"exit status {run.returncode}"
    return Ended(run.returncode, run.stdout, problem)


def last_line(output: bytes) -> str:
    """Return the last line that a process has written, or nothing."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_alive(pid: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        with contextlib.suppress(PermissionError):  # a process of another user
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
