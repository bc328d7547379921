"""Find the timelines in the folder of a run: timeline.json.gz, timeline-2.json.gz and so on."""

from pathlib import Path

__all__ = ["FILE", "nth_timeline", "timelines_in"]

FILE = "timeline/timeline.json.gz"


def nth_timeline(folder: Path, number: int) -> Path:
    """Return the file of a timeline of the run in a folder; they are counted from 1."""
    first = folder / FILE
    return first if number == 1 else first.with_name(first.name.replace(".", f"-{number}.", 1))


def timelines_in(folder: Path) -> list[Path]:
    """Return the timelines of the run in a folder, in the order in which they were recorded."""
    found: list[Path] = []
    while (path := nth_timeline(folder, len(found) + 1)).exists():
        found.append(path)
    return found
