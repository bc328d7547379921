"""Describe the progress of a training in one line."""

import itertools
import math
import re
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tfdist._utils.readable_text import duration
from tfdist.launcher.run_events import Progressed, RunStarted

_BAR_WIDTH, _SHORTEST_BAR = 24, 6
_SECONDS_BETWEEN_LINES, _SECONDS_BEFORE_LAST_LINE = 10.0, 1.0
# The text of `describe_progress`, after that of a logger, or of a bar of Keras that has no end.
_LINE = re.compile(r"step \d[\d,]*(?: of [\d,]+ \(\d+ %\))?(?:, .*)?$")


def describe_run(started: RunStarted, place: str) -> str:
    """Return what is trained, how, and where the files of the run are, in three lines that are short."""
    parameters = f" ({started.parameters:,} parameters)" if started.parameters else ""
    data = f" on {started.data}" if started.data else ""
    devices = f" on {started.devices}" if started.devices else ""
    return f"{started.model}{parameters}{data}\n{started.strategy}{devices}\nrun directory {place}"


class _Part(NamedTuple):
    """A part of the text about the progress; that of the highest rank is left out first."""

    rank: int
    text: str


def describe_progress(reports: Sequence[tuple[float, Progressed]]) -> str:
    """Return the progress as text.

    >>> reports = [(0.0, Progressed(100, 1000)), (10.0, Progressed(200, 1000, 5321.7, 0.12345, 0.987))]
    >>> describe_progress(reports)
    'step 200 of 1,000 (20 %), 5,322 examples/s, loss 0.1235, accuracy 0.9870, 1 min 20 s left'
    """
    return "".join(part.text for part in _parts(reports, ""))


def find_progress(line: str) -> str | None:
    """Return the progress that a line of a log describes; None if it describes none.

    >>> find_progress("I1128 tfdist: step 200 of 1,000 (20 %), loss 0.1235")
    'step 200 of 1,000 (20 %), loss 0.1235'
    """
    match = _LINE.search(line)
    return match[0] if match else None


class ProgressLines:
    """Lines about the progress for a log: one in ten seconds, and one for the last step of a training."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, Progressed]] = deque(maxlen=20)
        self._described_at = time.monotonic()

    def after(self, report: Progressed) -> str | None:
        """Return the line that is due after a report, if any."""
        now, is_last = time.monotonic(), report.step == report.steps
        if self._reports and report.step < self._reports[-1][1].step:  # of another training
            self._reports.clear()
        self._reports.append((now, report))
        if now - self._described_at < (_SECONDS_BEFORE_LAST_LINE if is_last else _SECONDS_BETWEEN_LINES):
            return None
        self._described_at = now
        return describe_progress(self._reports)


def draw_progress(
    reports: Sequence[tuple[float, Progressed]], columns: int, encoding: str, evaluated: str = ""
) -> str:
    """Return a bar and the progress as text, in at most so many columns.

    Where there is less room, the bar is shorter first; then whole parts of the text are left out: first
    the results of the last evaluation and the per cent, which the bar shows; last the loss and the time left.

    >>> draw_progress([(0.0, Progressed(3, 4))], 30, "ascii")
    '########--- step 3 of 4 (75 %)'
    """
    last, parts = reports[-1][1], _parts(reports, evaluated)
    least = _SHORTEST_BAR + 1 if last.steps else 0
    while len(parts) > 1 and sum(len(part.text) for part in parts) + least > columns:
        parts.remove(max(parts))
    text = "".join(part.text for part in parts)
    width = min(_BAR_WIDTH, columns - len(text) - 1)
    bar = _draw_bar(last.step / last.steps, width, encoding) if last.steps and width >= _SHORTEST_BAR else ""
    return f"{bar}{text}"[:columns]


def _parts(reports: Sequence[tuple[float, Progressed]], evaluated: str) -> list[_Part]:
    """Return the parts of the text, in the order in which they are read."""
    (began, first), (now, last) = reports[0], reports[-1]
    parts = [_Part(0, f"step {last.step:,}{f' of {last.steps:,}' if last.steps else ''}")]
    if last.steps:
        parts.append(_Part(5, f" ({100 * last.step // last.steps} %)"))
    if (rate := average_speed(reports)) is not None:
        form = ",.0f" if 10 <= rate < 1e12 else ".2g"
        parts.append(_Part(4, f", {rate:{form}} examples/s"))
    if last.loss is not None:
        parts.append(_Part(2, f", loss {last.loss:.4g}"))
    if last.accuracy is not None:
        parts.append(_Part(3, f", accuracy {last.accuracy:.4f}"))
    if evaluated:
        parts.append(_Part(3 if last.accuracy is None else 6, f", {evaluated}"))
    if last.steps and last.step > first.step and last.step < last.steps:
        left = (last.steps - last.step) * (now - began) / (last.step - first.step)
        parts.append(_Part(1, f", {duration(left)} left"))
    return parts


def average_speed(reports: Sequence[tuple[float, Progressed]]) -> float | None:
    """Return the examples per second over all reports but the first, each for the time since the last one."""
    if not reports:
        return None
    if len(reports) == 1 or reports[-1][0] == reports[0][0]:
        rate = reports[-1][1].examples_per_second
        return rate if rate is not None and math.isfinite(rate) else None
    examples = seconds = 0.0
    for (before, _), (now, report) in itertools.pairwise(reports):
        if report.examples_per_second is not None and math.isfinite(report.examples_per_second):
            examples += report.examples_per_second * (now - before)
            seconds += now - before
    return examples / seconds if seconds else None


def _draw_bar(part: float, width: int, encoding: str) -> str:
    """Return a bar of which a part is full, and a blank after it."""
    full, empty = ("━", "─") if "utf" in encoding.lower() else ("#", "-")
    done = round(max(0.0, min(part, 1.0)) * width)
    return f"{full * done}{empty * (width - done)} "
