"""Define the reports that a chief sends to the launcher, and read them: one JSON object per line."""

import json
import math
from collections.abc import Iterator
from typing import NamedTuple


class Progress(NamedTuple):
    """A report of progress: the step reached, of how many, the speed, and loss and accuracy in training."""

    step: int
    steps: int | None = None
    examples_per_second: float | None = None
    loss: float | None = None
    accuracy: float | None = None


class Silence(NamedTuple):
    """A report that a task does not answer, and for how many seconds."""

    silent: str
    seconds: float


class Joined(NamedTuple):
    """A report that the chief takes part in the cluster through tfdist."""

    joined: bool


Report = Progress | Silence | Joined


def read_reports(data: bytes) -> Iterator[Report]:
    """Yield the valid reports in the data, and skip everything else.

    >>> list(read_reports(b'{"step": "two"}\\n{"silent": "ps:0", "seconds": 30}\\n'))
    [Silence(silent='ps:0', seconds=30)]
    """
    for line in data.splitlines():
        try:
            values = json.loads(line)
            report = next((kind for key, kind in _TYPE_OF_KEY.items() if key in values), Progress)(**values)
        except (TypeError, ValueError, RecursionError):
            continue
        if _is_valid(report):
            yield report


_TYPE_OF_KEY: dict[str, type[Silence | Joined]] = {"silent": Silence, "joined": Joined}


def _is_valid(report: Report) -> bool:
    if isinstance(report, Joined):
        return report.joined is True
    if isinstance(report, Silence):
        is_time = isinstance(report.seconds, (int, float)) and 0 <= report.seconds < math.inf
        return is_time and isinstance(report.silent, str)
    counts = (report.step, report.steps or 0)
    figures = (report.examples_per_second or 0, report.loss or 0, report.accuracy or 0)
    are_numbers = all(isinstance(number, int) and 0 <= number < 2**63 for number in counts)
    return are_numbers and all(isinstance(number, (int, float)) for number in figures)
