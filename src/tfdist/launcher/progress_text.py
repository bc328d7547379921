"""Describe the progress of a training in one line, and times and counts, as people read them."""

import itertools
from collections.abc import Sequence

from tfdist.launcher.chief_reports import Progress

__all__ = ["average_speed", "count", "describe_progress", "draw_bar", "duration"]

_BAR_WIDTH = 24


def describe_progress(reports: Sequence[tuple[float, Progress]]) -> str:
    """Return the progress as text.

    >>> describe_progress([(0.0, Progress(100, 1000)), (10.0, Progress(200, 1000, 5321.7, 0.12345))])
    'step 200 of 1,000 (20 %), 5,322 examples/s, loss 0.1235, 1 min 20 s left'
    """
    (began, first), (now, last) = reports[0], reports[-1]
    of_all = f" of {last.steps:,} ({100 * last.step // last.steps} %)" if last.steps else ""
    parts = [f"step {last.step:,}{of_all}"]
    if (rate := average_speed(reports)) is not None:
        parts.append(f"{rate:,.0f} examples/s" if rate >= 10 else f"{rate:.2g} examples/s")
    if last.loss is not None:
        parts.append(f"loss {last.loss:.4g}")
    if last.steps and last.step > first.step and last.step < last.steps:
        left = (last.steps - last.step) * (now - began) / (last.step - first.step)
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def average_speed(reports: Sequence[tuple[float, Progress]]) -> float | None:
    """Return the examples per second over all reports but the first, each for the time since the last one."""
    if not reports:
        return None
    if len(reports) == 1 or reports[-1][0] == reports[0][0]:
        return reports[-1][1].examples_per_second
    examples = seconds = 0.0
    for (before, _), (now, report) in itertools.pairwise(reports):
        if report.examples_per_second is not None:
            examples += report.examples_per_second * (now - before)
            seconds += now - before
    return examples / seconds if seconds else None


def count(quantity: int, singular: str, plural: str = "") -> str:
    """Return how many there are of something.

    >>> count(1, "restart"), count(2, "process", "processes")
    ('1 restart', '2 processes')
    """
    return f"{quantity:,} {singular if quantity == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """Return a time in units that people read.

    >>> duration(125)
    '2 min 5 s'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def draw_bar(part: float, encoding: str) -> str:
    """Return a bar of which a part is full, and a blank after it."""
    full, empty = ("━", "─") if "utf" in encoding.lower() else ("#", "-")
    done = round(max(0.0, min(part, 1.0)) * _BAR_WIDTH)
    return f"{full * done}{empty * (_BAR_WIDTH - done)} "
