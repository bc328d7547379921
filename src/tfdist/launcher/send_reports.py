"""Send reports from the chief to the launcher through a pipe: one JSON object per line.

Only the chief gets the variable TFDIST_PROGRESS, which names the pipe's descriptor and inode, such as
`7:81442`. A child of the chief inherits the variable, but its descriptor 7 may be another file or closed.
"""

import contextlib
import fcntl
import json
import logging
import os
import stat
import threading
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from tfdist.launcher.kubeflow_progress import report_to_kubeflow
from tfdist.launcher.progress_for_engines import print_progress, prints_progress, write_progress
from tfdist.launcher.report_messages import Joined, Silence, in_pieces
from tfdist.launcher.run_events import Progressed

VARIABLE = "TFDIST_PROGRESS"

# With the milliseconds of 1,000 tasks, an event has 70 kB, more than what a pipe holds by itself.
_BYTES_IN_PIPE = 1 << 18

_log = logging.getLogger("tfdist")
_sending = threading.Lock()
_has_dropped_an_event = False


def report_joined() -> None:
    """Tell the launcher that this process connects to its cluster."""
    _report(asdict(Joined(True)))


def send_progress(report: Progressed) -> None:
    """Tell the launcher, engine or Kubeflow how many steps are done: see `record_events.report_progress`."""
    values = asdict(report)
    del values["time"]
    _report(values)
    write_progress(values, is_last=report.step == report.steps)
    if prints_progress():
        print_progress(report)
    figures = {name: values[name] for name in ("loss", "accuracy", "examples_per_second")}
    report_to_kubeflow(report.step, report.steps, figures)


def report_event(line: bytes) -> None:
    """Tell the launcher of an event, which is a JSON object with the key "event" (see run_events.py)."""
    global _has_dropped_an_event
    try:
        _write(line)
    except BlockingIOError:
        if not _has_dropped_an_event:
            _has_dropped_an_event = True
            _log.warning("the launcher is slow or stopped: what it shows of this run lacks some events")


def report_silent(task: str, seconds: float) -> bool:
    """Ask the launcher to kill a running task that does not answer, which then counts as lost.

    Args:
        task: The name of the task, such as `worker:1`.
        seconds: For how long it has not answered. A process that was started since then is not killed.

    Returns:
        Whether a launcher was asked. Without one, whoever started the task must end it.
    """
    return _report(asdict(Silence(task, seconds)))


def _report(values: Mapping[str, Any]) -> bool:
    """Report values to the launcher as JSON; return whether that was possible."""
    try:
        return _write(json.dumps(values).encode())
    except BlockingIOError:  # newer ones follow
        return False


def _write(line: bytes) -> bool:
    """Write a line to the launcher without waiting; return whether there is one.

    Raises:
        BlockingIOError: The launcher is slow.
    """
    fd, _, inode = os.environ.get(VARIABLE, "").partition(":")
    if not inode:
        return False
    # The launcher may be gone (BrokenPipeError), or the descriptor closed (EBADF): training continues.
    try:
        status = os.fstat(int(fd))
        if not stat.S_ISFIFO(status.st_mode) or status.st_ino != int(inode):
            return False
        with _sending:  # no other thread's piece comes between two
            for piece in in_pieces(line):
                os.write(int(fd), piece)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def open_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe for reports, which never block."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it, and it may allow less
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _BYTES_IN_PIPE)
    return ends


def address(pipe: int) -> str:
    """Return the value of VARIABLE with which a task reports through the writing end of a pipe."""
    return f"{pipe}:{os.fstat(pipe).st_ino}"
