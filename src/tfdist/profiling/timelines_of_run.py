"""Find the timelines in the folder of a run: timeline.json.gz, timeline-2.json.gz and so on.

Beside each, timeline.shares.json and so on has the table of how each task has spent its time.
"""

from pathlib import Path

FILE = "timeline/timeline.json.gz"


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
