"""Run a cluster on this machine for what its tasks find out, and leave nothing of it behind."""

import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.cluster import ClusterConfig
from tfdist.errors import TfdistError
from tfdist.launcher import LaunchError, launch, own_cores

__all__ = ["Trial", "spread", "try_out"]

_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal
_OURS = "tfdist: "


class Trial(NamedTuple):
    """Hold what came of a trial.

    Attributes:
        found: What each task that found something has written, by the name of its file.
        outside: How many of this process's cores others kept busy meanwhile; None where that is not known.
    """

    found: dict[str, Any]
    outside: float | None


def try_out(cluster: ClusterConfig, command: Sequence[str], **options: Any) -> Trial:
    """Run a command as every task of a cluster; give what the tasks have written.

    Args:
        cluster: The cluster; all of it is on this machine.
        command: What each task runs; a folder is added to it, into which it writes `<any name>.json`.
        options: More arguments for `launch`.

    Raises:
        TfdistError: A task failed: with what it said last, and its exit status.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-trial-") as name:
        folder = Path(name, "found")
        folder.mkdir()
        begun = _Processors()
        try:
            launch(cluster, [*command, str(folder)], run_dir=Path(name, "run"), stream=StringIO(), **options)
        except LaunchError as error:
            said = [line for line in error.tail if line.startswith(_OURS)] or list(error.tail)
            if not said:  # stopped by a signal
                raise
            failure = TfdistError(error.where, said[-1].removeprefix(_OURS))
            failure.exit_code = error.exit_code
            raise failure from error
        found = {each.stem: json.loads(each.read_text()) for each in sorted(folder.glob("*.json"))}
        return Trial(found, _Processors().others_since(begun))


def spread(values: Sequence[float], form: str) -> str:
    """Write what several trials gave: the one in the middle, and between which they are."""
    middle = sorted(values)[len(values) // 2]
    around = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{middle:{form}}{around}"


class _Processors:
    """Hold how much work the cores of this process have done by now, and how much of it was its own."""

    def __init__(self) -> None:
        self._now, self._busy = time.monotonic(), _busy_seconds()
        # Of the tasks, which have ended, and of the processes between them and this one.
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self._own = sum(each.ru_utime + each.ru_stime for each in used)

    def others_since(self, begun: "_Processors") -> float | None:
        if self._busy is None or begun._busy is None:
            return None
        others = (self._busy - begun._busy) - (self._own - begun._own)
        return max(0.0, others) / max(self._now - begun._now, 1e-9)


def _busy_seconds() -> float | None:
    """Say how long programs, whoever's, have run on this process's cores since the system started."""
    names = {f"cpu{core}" for core in own_cores()}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:  # a system without it
        return None
    ticks = sum(int(each[1 + place]) for each in lines if each[0] in names for place in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
