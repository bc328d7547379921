"""Measure how busy a process's cores are, whoever uses them, and write the process's figures."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["busy_seconds", "tell"]

_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal


def busy_seconds() -> float:
    """Return the seconds that its cores worked for programs, and for other virtual machines of the host."""
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = sum(int(each[1 + place]) for each in lines if each[0] in own for place in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")


def tell(folder: str | Path, rank: int, found: Sequence[Mapping[str, float]]) -> None:
    """Write this process's figures, window by window, where the benchmark reads those of all."""
    (Path(folder) / f"found-{rank}.json").write_text(json.dumps(found))
