"""Measure how long a cluster of four local processes takes from the command to its first trained step.

    python benchmarks/first_step.py [--pairs 5]

Beside it, in turns, one process that imports TensorFlow, makes the same model and takes one step of Keras's
fit. How large the cluster's tasks are then is held against a process that has only imported TensorFlow. When
the tasks begin and when all of them serve is told by what they say. The table goes into docs/results.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import yaml
from results import machine, put, spread, table

PEER = Path(__file__).parent / "peers" / "first_step.py"
_LIMIT = 120.0
_CONFIG = {
    "cluster": {"chief": 1, "worker": 2, "ps": 1},
    "strategy": {"name": "parameter_server"},
    "data": {"name": "digits", "batch_size": 128},
    "model": {"name": "mnist_cnn"},
    "train": {"steps": 100_000, "optimizer": "adam"},
}


class Start(NamedTuple):
    """Record the seconds until the tasks begin, all serve and a step is done, and each task's size then."""

    begin: float
    serve: float
    step: float
    sizes: dict[str, int]


def ours(folder: Path) -> Start:
    """Start a cluster; give the seconds until it has come so far, and its sizes."""
    config, run = folder / "config.yaml", folder / "run"
    config.write_text(yaml.safe_dump(_CONFIG))
    command = [sys.executable, "-m", "tfdist.train", "--config", str(config), "--run_dir", str(run)]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    begin = serve = 0.0
    try:
        for line in process.stdout or ():
            passed = time.monotonic() - began
            if " read the cluster from " in line:
                begin = begin or passed
            if " serves at " in line:
                serve = passed
            if line.startswith("[launcher] step "):
                return Start(begin, serve, passed, sizes(str(run)))
            if passed > _LIMIT:
                break
        sys.exit(f"the cluster took no step within {_LIMIT:g} s, or ended")
    finally:
        process.terminate()
        process.terminate()
        process.communicate()


def sizes(run: str) -> dict[str, int]:
    """Measure the resident size of each task of a run, in bytes."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode()
            variables = dict(
                each.partition("=")[::2] for each in (entry / "environ").read_bytes().decode().split("\0")
            )
            pages = int((entry / "statm").read_text().split()[1])
        except (OSError, UnicodeDecodeError):  # ended meanwhile, or somebody else's
            continue
        task = json.loads(variables.get("TF_CONFIG", "{}")).get("task")
        if task and run in words:
            found[f"{task['type']}:{task['index']}"] = pages * os.sysconf("SC_PAGE_SIZE")
    return found


def theirs() -> tuple[float, int]:
    """Measure the seconds until one process has taken a step, and its size after importing TensorFlow."""
    began = time.time()
    said = json.loads(subprocess.run([sys.executable, PEER], check=True, stdout=subprocess.PIPE).stdout)
    return said["at"] - began, said["bare"]


def main() -> None:
    """Read the flags, measure in turns, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    measured = []
    with tempfile.TemporaryDirectory(prefix="first-step-") as folder:
        for number in range(pairs + 1):
            (place := Path(folder, str(number))).mkdir()
            measured.append((ours(place), *theirs()))
            print(f"{measured[-1][0].step:.2f} s, {measured[-1][1]:.2f} s", flush=True)
    measured = measured[1:]  # the first has drawn the data, and read the files from the disk
    starts = [start for start, _, _ in measured]
    ratios = [start.step / alone for start, alone, _ in measured]
    bare = statistics.median(size for *_, size in measured)
    begin, serve, step = (
        statistics.median(getattr(each, name) for each in starts) for name in ("begin", "serve", "step")
    )
    sizes = {task: statistics.median(each.sizes[task] for each in starts) for task in sorted(starts[0].sizes)}
    head = f"Median and range of {pairs} pairs, taken in turns; {machine()}."
    told = (
        f"Chief, two workers and a ps: {step:.1f} s; one process:"
        f" {statistics.median(alone for _, alone, _ in measured):.1f} s; ratio {spread(ratios, '.2f')}. The"
        f" tasks began after {begin:.1f} s, forked from a process that has loaded TensorFlow, and all served"
        f" after {serve:.1f} s."
    )
    columns = ("task, after the first step", "resident", f"of a bare import ({bare / 1e6:.0f} MB)")
    rows = [(f"`{task}`", f"{size / 1e6:.0f} MB", f"{size / bare:.2f}") for task, size in sizes.items()]
    put("first step", head, told, table(columns, rows))


if __name__ == "__main__":
    main()
