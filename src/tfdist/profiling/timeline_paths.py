"""Find the timelines in the folder of a run: timeline.json.gz, timeline-2.json.gz and so on.

Beside each, timeline.shares.json and so on has the table of how each task has spent its time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = "timeline/timeline.json.gz"


@dataclass(frozen=True)
class TaskShares:
    """How a task has spent the time of the steps.

    Attributes:
        task: The task.
        steps: How many steps its training loop has taken; 0 for one that serves others.
        seconds: How long the recorded steps took.
        shares: The part of that time by kind, which add up to 1.
    """

    task: str
    steps: int
    seconds: float
    shares: Mapping[str, float]


def nth_timeline(folder: Path, number: int) -> Path:
    """Return the file of a timeline of the run in a folder; they are counted from 1."""
    first = folder / FILE
    return first if number == 1 else first.with_name(first.name.replace(".", f"-{number}.", 1))


def shares_file(timeline: Path) -> Path:
    """Return the file of the table of a timeline."""
    return timeline.with_name(timeline.name.replace(".json.gz", ".shares.json"))


def timelines_in(folder: Path) -> list[Path]:
    """Return the timelines of the run in a folder, in the order in which they were recorded."""
    found: list[Path] = []
    while (path := nth_timeline(folder, len(found) + 1)).exists():
        found.append(path)
    return found
