"""Carry what the chief has to say to the launcher: one JSON object a line, through a pipe.

The variable TFDIST_PROGRESS, which only the chief gets, names the pipe's descriptor and its inode, `7:81442`:
a child of the chief inherits the variable, but may have a file of its own under that number, or nothing.
"""

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["VARIABLE", "Progress", "Silence", "address", "read_reports", "report_progress", "report_silent"]

VARIABLE = "TFDIST_PROGRESS"


class Progress(NamedTuple):
    """Hold one report: the step that the job has come to, of how many, and how it goes."""

    step: int
    steps: int | None = None
    examples_per_second: float | None = None
    loss: float | None = None


class Silence(NamedTuple):
    """Hold the name of a task that no longer answers, and for how many seconds it has not."""

    silent: str
    seconds: float


def report_progress(
    step: int,
    steps: int | None = None,
    *,
    examples_per_second: float | None = None,
    loss: float | None = None,
) -> None:
    """Tell the launcher how far the job has come; do nothing where no launcher asks this process.

    A call takes some microseconds and never waits: where the launcher is slow to read, the report is dropped.

    Args:
        step: The steps that are done.
        steps: How many there will be.
        examples_per_second: The speed of the whole cluster.
        loss: The last loss.
    """
    _report(Progress(step, steps, examples_per_second, loss)._asdict())


def report_silent(task: str, seconds: float) -> bool:
    """Ask the launcher to kill a task that runs and no longer answers, which then counts as lost.

    Args:
        task: Which one, such as `worker:1`.
        seconds: For how long it has not answered. One that was started since is left alone.

    Returns:
        Whether a launcher has been asked: without one, whoever started the task is to end it.
    """
    return _report(Silence(task, seconds)._asdict())


def _report(values: Mapping[str, Any]) -> bool:
    """Write a line to the launcher, without ever waiting for it; say whether that was possible."""
    fd, _, inode = os.environ.get(VARIABLE, "").partition(":")
    if not inode:
        return False
    # The launcher may be behind (BlockingIOError) or gone (BrokenPipeError), the descriptor closed (EBADF):
    # training is to mind none of it.
    try:
        found = os.fstat(int(fd))
        if not stat.S_ISFIFO(found.st_mode) or found.st_ino != int(inode):
            return False
        os.write(int(fd), json.dumps(values).encode() + b"\n")
    except OSError:
        return False
    return True


def address(pipe: int) -> str:
    """Give what VARIABLE says to let a task report through the writing end of a pipe."""
    return f"{pipe}:{os.fstat(pipe).st_ino}"


def read_reports(data: bytes) -> Iterator[Progress | Silence]:
    """Read the reports that have come, and pass over whatever is none.

    >>> list(read_reports(b'{"step": "two"}\\n{"silent": "ps:0", "seconds": 30}\\n'))
    [Silence(silent='ps:0', seconds=30)]
    """
    for line in data.splitlines():
        try:
            values = json.loads(line)
            report = Silence(**values) if "silent" in values else Progress(**values)
        except (TypeError, ValueError, RecursionError):
            continue
        if _is_sound(report):
            yield report


def _is_sound(report: Progress | Silence) -> bool:
    if isinstance(report, Silence):
        is_time = isinstance(report.seconds, (int, float)) and 0 <= report.seconds < math.inf
        return is_time and isinstance(report.silent, str)
    counts = (report.step, report.steps or 0)
    figures = (report.examples_per_second or 0, report.loss or 0)
    are_numbers = all(isinstance(n, int) and 0 <= n < 2**63 for n in counts)
    return are_numbers and all(isinstance(n, (int, float)) for n in figures)
