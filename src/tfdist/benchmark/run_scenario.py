"""Run scenarios: a trial collects the measurements of its tasks, and deletes their files."""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tfdist._utils.write_files import temporary_folder
from tfdist.benchmark.scenarios import Bench, Scenario
from tfdist.benchmark.task_measurements import Record, Sample
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus

_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: user, nice, system, irq, softirq, steal


def run(bench: Bench, scenario: Scenario) -> Sample:
    """Run one scenario; return its measurements."""
    roles = scenario.roles
    command = [sys.executable, "-m", "tfdist", "bench", "--config", bench.settings.path]
    command += [f"--set={change}" for change in (*bench.changes, *scenario.changes)]
    command += [f"--steps={bench.steps}", f"--warmup={bench.warmup}", "--record"]
    trial = try_out(
        ClusterConfig.local(roles["worker"], roles.get("ps", 0), roles.get("chief")),
        command,
        env=scenario.env,
        threads=scenario.threads,
        cores=own_cores()[: scenario.cores],
        gpus=own_gpus()[: scenario.gpus],
        pin=scenario.pin,
        network_isolation=bench.settings.network_isolation(),
        loads_once=True,
    )
    return Sample([msgspec.convert(values, Record) for values in trial.written.values()], trial.outside)


class Trial(NamedTuple):
    """The result of a trial.

    Attributes:
        written: What each task has written, by the name of its file.
        outside: How many of this process's cores other programs kept busy; None if that is unknown.
    """

    written: dict[str, Any]
    outside: float | None


def try_out(cluster: ClusterConfig, command: Sequence[str], **options: Any) -> Trial:
    """Run a command as every task of a cluster; return what the tasks have written.

    Args:
        cluster: The cluster; all of it is on this machine.
        command: What each task runs. Its last argument is a folder, into which the task writes `<any
            name>.json`.
        options: More arguments for `launch`.

    Raises:
        TfdistError: A task failed; the error has the last message of the task, and its exit status.
    """
    with temporary_folder("tfdist-trial-") as name:
        folder = Path(name, "written")
        folder.mkdir()
        begun = _Processors()
        try:
            launch(cluster, [*command, str(folder)], run_dir=Path(name, "run"), stream=StringIO(), **options)
        except LaunchError as error:
            raise error.as_the_task_said() from error
        written = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}
        return Trial(written, _Processors().others_since(begun))


class _Processors:
    """The work that this process's cores have done until now, and this process's part of it."""

    def __init__(self) -> None:
        self._now, self._busy = time.monotonic(), _busy_seconds()
        # Children are the tasks, which have ended, and the processes between them and this one.
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self._own = sum(usage.ru_utime + usage.ru_stime for usage in used)

    def others_since(self, begun: "_Processors") -> float | None:
        if self._busy is None or begun._busy is None:
            return None
        others = (self._busy - begun._busy) - (self._own - begun._own)
        return max(0.0, others) / max(self._now - begun._now, 1e-9)


def _busy_seconds() -> float | None:
    """Return how long programs have run on this process's cores since the system started."""
    names = {f"cpu{core}" for core in own_cores()}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text("utf-8").splitlines()]
    except OSError:  # a system without /proc/stat
        return None
    ticks = sum(int(fields[1 + column]) for fields in lines if fields[0] in names for column in _BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")
