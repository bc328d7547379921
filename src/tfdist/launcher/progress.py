"""Carry the chief's progress to the launcher: one JSON object a line, through a pipe.

The variable TFDIST_PROGRESS, which only the chief gets, names the pipe's descriptor and its inode, `7:81442`:
a child of the chief inherits the variable, but may have a file of its own under that number, or nothing.
"""

import contextlib
import json
import os
import stat
from typing import NamedTuple

__all__ = ["VARIABLE", "Progress", "address", "last_report", "report_progress"]

VARIABLE = "TFDIST_PROGRESS"


class Progress(NamedTuple):
    """Hold one report: the step that the job has come to, of how many, and how it goes."""

    step: int
    steps: int | None = None
    examples_per_second: float | None = None
    loss: float | None = None


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
    fd, _, inode = os.environ.get(VARIABLE, "").partition(":")
    if not inode:
        return
    line = json.dumps(Progress(step, steps, examples_per_second, loss)._asdict()).encode() + b"\n"
    # The launcher may be behind (BlockingIOError) or gone (BrokenPipeError), the descriptor closed (EBADF):
    # training is to mind none of it.
    with contextlib.suppress(OSError):
        found = os.fstat(int(fd))
        if stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode):
            os.write(int(fd), line)


def address(pipe: int) -> str:
    """Give what VARIABLE says to let a task report through the writing end of a pipe."""
    return f"{pipe}:{os.fstat(pipe).st_ino}"


def last_report(data: bytes) -> Progress | None:
    """Read the last of the reports that have come, if it is one.

    >>> last_report(b'{"step": 1}\\n{"step": 2, "loss": NaN}\\n')
    Progress(step=2, steps=None, examples_per_second=None, loss=nan)
    """
    try:
        report = Progress(**json.loads(data.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        return None
    counts = (report.step, report.steps or 0)
    figures = (report.examples_per_second or 0, report.loss or 0)
    are_numbers = all(isinstance(n, int) and 0 <= n < 2**63 for n in counts)
    return report if are_numbers and all(isinstance(n, (int, float)) for n in figures) else None
