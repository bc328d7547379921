"""Define report.json, the results of a run."""

from pathlib import Path
from typing import Any

import msgspec

from tfdist._utils.write_files import without_nan, write_json


class RunReport(msgspec.Struct):
    """The results of a run; a file of another version may lack some."""

    data: str = ""
    substitute_for: str | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    test: dict[str, float | None] = {}
    steps: int = 0
    skipped_batches: list[int] = []
    begun_at_step: int = 0
    starts: int = 0
    steps_lost: int = 0
    seconds: float = 0.0
    bytes_sent_per_step: dict[str, int] = {}
    export: str = ""
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}


def write_report(path: Path, report: RunReport) -> None:
    """Write the report; results that are NaN or infinite are null there."""
    write_json(path, without_nan(msgspec.to_builtins(report)))
