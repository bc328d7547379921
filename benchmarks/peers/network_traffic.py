"""Record when steps begin and end, and what all tasks of the cluster compute and send meanwhile.

The tasks are in network namespaces of their own, and on one machine: so any of them sees the bytes at the
interface of each, and its processor time.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Moment", "Recorder", "note_task", "tell", "wait_for_results"]

_TICKS = os.sysconf("SC_CLK_TCK")
# Of a line of /proc/stat: user, nice, system, steal. Interrupts are the network's own, or nobody's.
_BUSY = (1, 2, 3, 8)


def note_task(folder: Path, name: str) -> None:
    """Write this process's number, by which the others find it."""
    (folder / f"{name}.pid").write_text(str(os.getpid()))


class Moment(NamedTuple):
    """Record a moment.

    Attributes:
        wall: The clock.
        busy: The seconds that all cores have worked for programs, and for other virtual machines.
        cpu: The processor time of each task.
        sent: The bytes that each task's interface has sent.
        received: The bytes that it has received.
    """

    wall: float
    busy: float
    cpu: Mapping[str, float]
    sent: Mapping[str, int]
    received: Mapping[str, int]

    @classmethod
    def now(cls, folder: Path) -> "Moment":
        """Read the clocks and counters."""
        tasks = {file.stem: Path("/proc", file.read_text()) for file in folder.glob("*.pid")}
        traffic = {name: _bytes((process / "net" / "dev").read_text()) for name, process in tasks.items()}
        return cls(
            time.perf_counter(),
            sum(int(Path("/proc/stat").read_text().split("\n")[0].split()[field]) for field in _BUSY)
            / _TICKS,
            {name: _cpu_seconds(process) for name, process in tasks.items()},
            {name: sent for name, (sent, _) in traffic.items()},
            {name: received for name, (_, received) in traffic.items()},
        )

    def since(self, begun: "Moment", steps: int) -> dict[str, float]:
        """Compute the figures of a step: time, processor time, bytes, and what others had of the cores.

        `bytes` are those of the link and direction that carried most.
        """
        wall = self.wall - begun.wall
        cpu = sum(self.cpu.values()) - sum(begun.cpu.values())
        carried = [
            now[name] - old[name] for now, old in zip(self[3:], begun[3:], strict=True) for name in now
        ]
        outside = max(0.0, (self.busy - begun.busy - cpu) / wall)
        return {"wall": wall / steps, "cpu": cpu / steps, "bytes": max(carried) / steps, "outside": outside}


class Recorder:
    """Record windows of so many steps, after a warm-up.

    Attributes:
        steps: How many steps there are in all.
        windows: The figures of each window.
    """

    def __init__(self, folder: Path, warm_up: int, steps: int, window: int) -> None:
        self.steps = warm_up + steps
        self.windows: list[dict[str, float]] = []
        self._folder, self._warm_up, self._window = folder, warm_up, window
        self._begun: Moment | None = None

    def after_step(self, number: int) -> None:
        """Note that so many steps are done."""
        done = number - self._warm_up
        if done % self._window or not 0 <= done <= self.steps - self._warm_up:
            return
        now = Moment.now(self._folder)
        if self._begun is not None:
            self.windows.append(now.since(self._begun, self._window))
        self._begun = now


def tell(folder: Path, **found: list[dict[str, float]]) -> None:
    """Write the windows of each part where the benchmark reads them."""
    part = folder / "found.part"
    part.write_text(json.dumps(found))
    part.rename(folder / "found.json")


def wait_for_results(folder: Path) -> None:
    """Wait until the first task has written the results: until then it reads this process's counters."""
    while not (folder / "found.json").exists():
        time.sleep(0.1)


def _bytes(table: str) -> tuple[int, int]:
    """Return the bytes that the interface to the others has sent and received; a lone task has none."""
    for line in table.splitlines():
        name, _, counters = line.strip().partition(":")
        if name == "eth0":
            fields = counters.split()
            return int(fields[8]), int(fields[0])
    return 0, 0


def _cpu_seconds(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
