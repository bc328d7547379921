"""Kill a worker and a ps in the midst of training, and see it end with all of its steps.

    python examples/recovery.py

One ps and two workers of this machine train, asynchronously. After the first checkpoint a worker is killed
(SIGKILL): the other one goes on, and the launcher starts it again. After the second the ps is killed, and the
variables with it: all start again from the last checkpoint. The same run without a fault is beside it. For
Linux, in whose /proc the tasks are found.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "ps2w.yaml"


def process_of(task: str, run: Path) -> int:
    """Find the process that is a task of a run; its number, or 0."""
    kind, index = task.split(":")
    marks = {"environ": f'"task": {{"type": "{kind}", "index": {index}}}', "cmdline": str(run)}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if all(mark.encode() in (process / file).read_bytes() for file, mark in marks.items()):
                found.append(int(process.name))
    return min(found, default=0)  # what it may have forked itself comes after it


def trained(run: Path, steps: int, victims: Mapping[int, str], changes: list[str]) -> dict[str, Any]:
    """Train, and kill a task soon after there is a checkpoint of some step; give the run's report."""
    changes = ["data.name=digits", f"train.steps={steps}", f"checkpoint.every={steps // 4}", *changes]
    command = [sys.executable, "-m", "tfdist.train", "--config", str(CONFIG), "--run_dir", str(run)]
    training = subprocess.Popen([*command, *(f"--set={each}" for each in changes)], stdout=subprocess.DEVNULL)
    for step, task in victims.items():
        while not (run / "checkpoints" / str(step)).exists() and training.poll() is None:
            time.sleep(0.01)
        time.sleep(0.5)  # so that there is something to lose
        if process := process_of(task, run):
            print(f"killing {task}, process {process}, after step {step}", flush=True)
            os.kill(process, signal.SIGKILL)
    if training.wait():
        sys.exit(training.returncode)
    report: dict[str, Any] = json.loads((run / "report.json").read_text())
    return report


def main() -> None:
    """Read the flags, train with and without faults, and print both reports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument(
        "--set", action="append", default=[], help="a value of the config, as for tfdist.train"
    )
    flags = parser.parse_args()
    faults = {flags.steps // 4: "worker:1", flags.steps // 2: "ps:0"}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, victims in (("no fault", {}), ("a worker and the ps killed", faults)):
            report = trained(Path(folder, name.replace(" ", "-")), flags.steps, victims, flags.set)
            numbers = f"{report['steps']} | {report['starts']} | {report['steps_lost']}"
            rows.append(f"| {name} | {numbers} | {report['test_accuracy']:.4f} |")
    print(
        "| | steps | starts | steps lost, and computed again | test accuracy |\n|---|---|---|---|---|",
        *rows,
        sep="\n",
    )


if __name__ == "__main__":
    main()
