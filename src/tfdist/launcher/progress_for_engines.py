"""Write the chief's progress for an engine whose user looks at a run from elsewhere.

A file has the last report of progress. Beside it, the file SAVED_STEP has the step of the last checkpoint; a
new one renews the engine's count of restarts. If the user sees no file of the run, the chief prints its
progress, since all engines keep what tasks print.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist.launcher.progress_text import ProgressLines
from tfdist.launcher.run_events import Progressed

PROGRESS_FILE = "TFDIST_PROGRESS_FILE"  # names the file; an engine sets it for the chief alone
LOG_PROGRESS = "TFDIST_LOG_PROGRESS"  # an engine sets it to 1 where the chief is to print its progress
SAVED_STEP = "saved_step"
_SECONDS_BETWEEN_WRITES = 2.0  # a file of a network's file system
_lock = threading.Lock()
_written_at = float("-inf")
_lines = ProgressLines()


def prints_progress() -> bool:
    """Return whether an engine wants the chief to print its progress."""
    return os.environ.get(LOG_PROGRESS) == "1"


def inherited_progress_file() -> dict[str, str]:
    """Return the variable with which the chief of a launch writes the file that this process was told of."""
    return {PROGRESS_FILE: path} if (path := os.environ.get(PROGRESS_FILE)) else {}


def write_progress(report: Mapping[str, Any], *, is_last: bool) -> None:
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


def print_progress(report: Progressed) -> None:
    """Print how far the run has come, at most every ten seconds."""
    # As with the launcher's pipe, an output that is closed or full must not disturb the training.
    with _lock, contextlib.suppress(OSError, ValueError):
        if (line := _lines.after(report)) is not None:
            print(line, flush=True)
