"""Lose a task, and see how long it takes until the next step, and what takes the time.

    python benchmarks/recovery_parts.py [--runs 5]

A task is killed (SIGKILL) some steps after a checkpoint. The times are those of the run's own events, and of
a callback that notes when each step is over.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from recovery import PEERS, data_of, training_config
from results import machine, put, spread, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from training import Training

_STEPS_IN = 0.2  # seconds after a checkpoint
_PAUSES_WITHIN = 5.0  # seconds, while the lost worker comes back


class Loss(NamedTuple):
    """Which task of which cluster is lost."""

    strategy: str
    victim: str
    cluster: dict[str, int]

    @property
    def others_continue(self) -> bool:
        """Return whether the other workers continue without the task."""
        return self.strategy == "parameter_server" and self.victim.startswith("worker")


_SERVERS = {"chief": 1, "worker": 2, "ps": 1}
LOSSES = (
    Loss("multi_worker_mirrored", "worker:0", {"worker": 2}),
    Loss("multi_worker_mirrored", "worker:1", {"worker": 2}),
    *(Loss("parameter_server", victim, _SERVERS) for victim in ("worker:1", "ps:0", "chief:0")),
    *(Loss("parameter_server_sync", victim, _SERVERS) for victim in ("worker:1", "ps:0", "chief:0")),
)
# The events that end a part of the time, and what the part is.
PARTS = (
    ("task_exited", "noticed"),
    ("connecting", "all ended and started again"),
    ("loading data", "connected"),
    ("building", "data opened"),
    ("training", "model built and restored"),
    ("step", "step traced and taken"),
)


def main() -> None:
    """Read the flags, lose each task in turns, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    found: list[list[dict[str, float]]] = [[] for _ in LOSSES]
    with tempfile.TemporaryDirectory(prefix="recovery-parts-") as name:
        folder = Path(name)
        data = data_of(folder)
        for number in range(runs):
            for loss, times in zip(LOSSES, found, strict=True):
                place = folder / f"{loss.strategy}-{loss.victim}-{number}"
                times.append(_lost(loss, data, place, folder / "cache"))
                print(f"{loss.victim} of {loss.strategy}: {times[-1]}", flush=True)
    head = f"Median and range of {runs} runs, of each part the median, in seconds; {machine()}."
    columns = ("strategy", "lost", "until the next step", *(what for _, what in PARTS))
    rows = [_row(loss, times) for loss, times in zip(LOSSES, found, strict=True)]
    put("recovery parts", head, table(columns, rows))


def _lost(loss: Loss, data: Path, folder: Path, cache: Path) -> dict[str, float]:
    """Return the seconds until the next step, as `all`, and those of each part."""
    steps = folder / "steps.txt"
    config = training_config(loss.strategy, loss.cluster, data)
    config["train"]["callbacks"] = [{"name": "step_times:make", "path": str(steps)}]
    with Training(folder, config, str(cache)) as training:
        training.environ["PYTHONPATH"] += f"{os.pathsep}{PEERS}"
        training.start()
        training.until(lambda: training.newest(), "the first checkpoint")
        time.sleep(_STEPS_IN)
        victim, chief = training.tasks()[loss.victim], _Step.all_of(steps)[-1].pid
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        if loss.others_continue:
            time.sleep(_PAUSES_WITHIN)
            times = [step.at for step in _Step.all_of(steps) if step.at > killed]
            return {"all": max(later - earlier for earlier, later in pairwise([killed, *times]))}
        training.until(lambda: _Step.all_of(steps)[-1].pid != chief, "the next step")
        first = next(step.at for step in _Step.all_of(steps) if step.at > killed and step.pid != chief)
        return {"all": first - killed} | _parts(killed, _events(training.run, killed), first)


class _Step(NamedTuple):
    """A line that the callback has written."""

    pid: int
    at: float

    @classmethod
    def all_of(cls, file: Path) -> list["_Step"]:
        lines = file.read_text().splitlines(keepends=True)
        return [cls(int(line.split()[0]), float(line.split()[1])) for line in lines if line.endswith("\n")]


def _events(run: Path, moment: float) -> list[dict[str, Any]]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["time"] >= moment]


def _parts(killed: float, events: list[dict[str, Any]], first: float) -> dict[str, float]:
    """Return the seconds of each part, which ends with an event."""
    ends = [min(at for name, at in _named(events) if name == end) for end, _ in PARTS[:-1]]
    both = pairwise([killed, *ends, first])
    return {what: later - earlier for (_, what), (earlier, later) in zip(PARTS, both, strict=True)}


def _named(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(event.get("phase", event["event"]), event["time"]) for event in events]


def _row(loss: Loss, times: list[dict[str, float]]) -> list[str]:
    parts = [
        "" if loss.others_continue else f"{statistics.median(each[what] for each in times):.2f}"
        for _, what in PARTS
    ]
    return [f"`{loss.strategy}`", loss.victim, spread([each["all"] for each in times], ".2f"), *parts]


if __name__ == "__main__":
    main()
