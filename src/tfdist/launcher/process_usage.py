"""Read from /proc which share of a core and how much memory a task uses."""

import os
import time
from pathlib import Path
from typing import NamedTuple

_UTIME = 11  # the place of the first of both times in /proc/PID/stat, after the name
_LEAST_SECONDS = 0.1  # between two looks: the kernel counts in ticks of 10 ms


class Usage(NamedTuple):
    """The use of one process: cores, and bytes of memory."""

    cores: float | None
    memory: int


class ProcessUsage:
    """A meter of processes, which compares each call with the last one."""

    def __init__(self) -> None:
        self._ticks: dict[int, tuple[float, int]] = {}

    def of(self, pid: int) -> Usage | None:
        """Return the use of a process since the last call; None if it has ended, or there is no /proc."""
        try:
            text = Path("/proc", str(pid), "stat").read_text("ascii", "replace")
            pages = Path("/proc", str(pid), "statm").read_text("ascii").split()
        except OSError:
            self._ticks.pop(pid, None)
            return None
        user, system = text.rpartition(")")[2].split()[_UTIME : _UTIME + 2]
        now, ticks = time.monotonic(), int(user) + int(system)
        began, ticks_before = self._ticks.setdefault(pid, (now, ticks))
        cores = None
        if now - began >= _LEAST_SECONDS:
            cores = (ticks - ticks_before) / os.sysconf("SC_CLK_TCK") / (now - began)
            self._ticks[pid] = now, ticks
        return Usage(cores, int(pages[1]) * os.sysconf("SC_PAGE_SIZE"))
