"""Tell how busy this process's cores are, whoever keeps them so."""

import os
from pathlib import Path

__all__ = ["busy_seconds"]

_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal


def busy_seconds() -> float:
    """Say how long they have worked for programs, and for other virtual machines of the host."""
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = sum(int(each[1 + place]) for each in lines if each[0] in own for place in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
