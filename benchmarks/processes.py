"""See from the outside what the processes of a run take: they inherit a mark in their environment."""

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Taken", "busy_seconds", "marked", "new_mark", "outside_seconds", "own_mark", "own_seconds"]

_MARK = "TFDIST_BENCHMARK"


class Taken(NamedTuple):
    """Record what a process has taken: bytes of memory that are resident, and seconds of CPU."""

    resident: int
    cpu: float


def new_mark() -> dict[str, str]:
    """Make the variable that marks the processes of a run."""
    return {_MARK: uuid.uuid4().hex}


def own_mark() -> dict[str, str]:
    """Return the mark that this process was started with."""
    return {_MARK: os.environ[_MARK]}


def marked(mark: Mapping[str, str]) -> dict[str, Taken]:
    """Measure what each process of a run has taken, by its task, or by its process id if it has none."""
    [pair] = (f"{name}={value}".encode() for name, value in mark.items())
    found: dict[str, Taken] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            pairs = (entry / "environ").read_bytes().split(b"\0")
            if pair not in pairs:
                continue
            variables = dict(each.partition(b"=")[::2] for each in pairs)
            task = json.loads(variables.get(b"TF_CONFIG", b"{}")).get("task")
            name = f"{task['type']}:{task['index']}" if task else entry.name
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            if name not in found or resident > found[name].resident:  # a child, as it is forked, is as large
                found[name] = Taken(resident, cpu)
    return found


def busy_seconds() -> float:
    """Return the seconds that all cores have worked for programs, and for other virtual machines."""
    line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _, _, irq, softirq, stolen, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Return the CPU seconds of this process, and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def outside_seconds() -> float:
    """Return the seconds that the cores have worked for others."""
    return busy_seconds() - own_seconds()
