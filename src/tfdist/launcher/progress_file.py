"""Keep the chief's last report of progress in a file, for engines whose user looks at a run from elsewhere.

TFDIST_PROGRESS_FILE names the file; the engine sets it for the chief alone. Beside it, the file SAVED_STEP
has the step of the last checkpoint. If that is a new one, the engine may restart lost tasks as often again.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["SAVED_STEP", "VARIABLE", "variables", "write_saved_step", "write_to_file"]

VARIABLE = "TFDIST_PROGRESS_FILE"
SAVED_STEP = "saved_step"
_SECONDS_BETWEEN_WRITES = 2.0  # a file of a network's file system

_lock = threading.Lock()
_written_at = float("-inf")


def variables() -> dict[str, str]:
    """Return the variable with which the chief of a launch writes the file that this process was told of."""
    return {VARIABLE: path} if (path := os.environ.get(VARIABLE)) else {}


def write_to_file(report: Mapping[str, Any], *, is_last: bool) -> None:
    """Write a report, in place of the last one, unless that is young; do nothing if no file is named."""
    global _written_at
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with _lock:
        if time.monotonic() - _written_at < _SECONDS_BETWEEN_WRITES and not is_last:
            return
        _written_at = time.monotonic()
        _replace(Path(path), json.dumps(report))


def write_saved_step(step: int) -> None:
    """Write the step of the checkpoint that the chief has just saved; do nothing if no file is named."""
    if path := os.environ.get(VARIABLE):
        _replace(Path(path).with_name(SAVED_STEP), str(step))


def _replace(path: Path, text: str) -> None:
    partial = Path(f"{path}.new")
    # A full disk stops the training where it saves, with a message; here it only makes the report old.
    with contextlib.suppress(OSError):
        partial.write_text(f"{text}\n")
        partial.replace(path)
