"""Send reports from the chief to the launcher through a pipe: one JSON object per line.

Only the chief gets the variable TFDIST_PROGRESS, which names the pipe's descriptor and inode, such as
`7:81442`. A child of the chief inherits the variable, but its descriptor 7 may be another file or closed.

For engines whose user looks at a run from elsewhere, a file has the last report of progress. Beside it, the
file SAVED_STEP has the step of the last checkpoint; a new one renews the engine's count of restarts. If the
user sees no file of the run, the chief prints its progress, since all engines keep what tasks print.
"""

import contextlib
import fcntl
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from tfdist.launcher.kubeflow_progress import report_to_kubeflow
from tfdist.launcher.progress_text import ProgressLines
from tfdist.launcher.report_messages import Joined, Silence, in_pieces
from tfdist.launcher.run_events import Progressed

VARIABLE = "TFDIST_PROGRESS"
PROGRESS_FILE = "TFDIST_PROGRESS_FILE"  # names the file; an engine sets it for the chief alone
LOG_PROGRESS = "TFDIST_LOG_PROGRESS"  # an engine sets it to 1 where the chief is to print its progress
SAVED_STEP = "saved_step"
_SECONDS_BETWEEN_WRITES = 2.0  # a file of a network's file system

# With the milliseconds of 1,000 tasks, an event has 70 kB, more than what a pipe holds by itself.
_BYTES_IN_PIPE = 1 << 18

_log = logging.getLogger("tfdist")
_lock, _sending = threading.Lock(), threading.Lock()
_has_dropped_an_event = False
_written_at = float("-inf")
_lines = ProgressLines()


def report_joined() -> None:
    """Tell the launcher that this process connects to its cluster."""
    _report(asdict(Joined(True)))


def send_progress(report: Progressed) -> None:
    """Tell the launcher, engine or Kubeflow how many steps are done: see `record_events.report_progress`."""
    values = asdict(report)
    del values["time"]
    _report(values)
    _write_to_file(values, is_last=report.step == report.steps)
    if prints_progress():
        _print(report)
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


def prints_progress() -> bool:
    """Return whether an engine wants the chief to print its progress."""
    return os.environ.get(LOG_PROGRESS) == "1"


def inherited_progress_file() -> dict[str, str]:
    """Return the variable with which the chief of a launch writes the file that this process was told of."""
    return {PROGRESS_FILE: path} if (path := os.environ.get(PROGRESS_FILE)) else {}


def _write_to_file(report: Mapping[str, Any], *, is_last: bool) -> None:
    """Write a report, in place of the last one, unless that is young; do nothing if no file is named."""
    global _written_at
    path = os.environ.get(PROGRESS_FILE)
    if not path:
        return
    with _lock:
        if time.monotonic() - _written_at < _SECONDS_BETWEEN_WRITES and not is_last:
            return
        _written_at = time.monotonic()
        _replace(Path(path), json.dumps(report))


def write_saved_step(step: int) -> None:
    """Write the step of the checkpoint that the chief has just saved; do nothing if no file is named."""
    if path := os.environ.get(PROGRESS_FILE):
        _replace(Path(path).with_name(SAVED_STEP), str(step))


def _replace(path: Path, text: str) -> None:
    partial = Path(f"{path}.new")
    # A full disk stops the training where it saves, with a message; here it only makes the report old.
    with contextlib.suppress(OSError):
        partial.write_text(f"{text}\n", "utf-8")
        partial.replace(path)


def _print(report: Progressed) -> None:
    # As with the launcher's pipe, an output that is closed or full must not disturb the training.
    with _lock, contextlib.suppress(OSError, ValueError):
        if (line := _lines.after(report)) is not None:
            print(line, flush=True)
