"""See whether the processes of a run grow: resident sizes over 20,000 tiny steps, under each strategy.

    python benchmarks/memory.py [--steps 20000] [STRATEGY ...]

Every task is looked at from the outside, four times a second, while it trains through the real command, and
evaluates and saves 500 times. The first half is left to what is taken once: traced functions, and arenas of
the allocator. A line is then laid through the medians of ten spans of steps; with what it rises in 1000 steps
comes the 95 % interval of that. A task grows where the whole interval is above {least:.0f} kB per 1000 steps;
then the script ends with 1, but not with fewer than {enough} steps, for then all is a beginning.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import marked, new_mark
from results import machine, put, table

PEERS = Path(__file__).parent / "peers"
CLUSTERS: dict[str, dict[str, int]] = {
    "one_device": {},
    "mirrored": {},
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
    "parameter_server_sync": {"chief": 1, "worker": 2, "ps": 1},
}
ENOUGH = 10_000  # steps to judge by
TIMES = 500  # that a run evaluates and saves
SPANS = 10
T_OF_SPANS = 2.306  # Student's, two-sided 95 %, for SPANS - 2 degrees of freedom
LEAST = 100.0  # kB per 1000 steps: 2 MB in 20,000
_SECONDS_APART = 0.25


class Growth(NamedTuple):
    """Record how a task's resident size changed: in MB, and in kB per 1000 steps."""

    first: float
    last: float
    slope: float
    error: float

    @property
    def is_sure(self) -> bool:
        """Return whether the task grows for sure."""
        return self.slope - self.error > LEAST


def watched(name: str, steps: int, folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Train under a strategy; give step and resident size of each task, as they were seen."""
    every = max(2, steps // TIMES)
    config = {
        "cluster": CLUSTERS[name],
        "strategy": {"name": name, **({"logical_devices": 2} if name == "mirrored" else {})},
        "data": {"name": str(_data(folder)), "batch_size": 8},
        "model": {"name": "linear:build"},
        "train": {"steps": steps, "optimizer": "momentum", "learning_rate": 0.001},
        "evaluation": {"every": every, "batches": 2},
        "checkpoint": {"every": every},
        "launch": {"threads": 1},
    }
    file, run, mark = folder / "config.yaml", folder / "run", new_mark()
    file.write_text(json.dumps(config))  # which YAML reads
    words = [sys.executable, "-m", "tfdist.train", "--config", str(file), "--run_dir", str(run)]
    path = f"{PEERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    seen: dict[str, list[tuple[int, int]]] = {}
    with (folder / "said").open("w") as said:
        environ = {**os.environ, **mark, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
        process = subprocess.Popen(words, env=environ, stdout=said, stderr=said)
        while process.poll() is None:
            time.sleep(_SECONDS_APART)
            step = _reached(run)
            if 0 < step < steps:  # the export comes after them
                for task, taken in marked(mark).items():
                    role = "the process" if task == str(process.pid) and not CLUSTERS[name] else task
                    seen.setdefault(role, []).append((step, taken.resident))
    if process.returncode:
        sys.exit(
            f"{' '.join(words)} ended with {process.returncode}:\n{(folder / 'said').read_text()[-3000:]}"
        )
    return {task: each for task, each in seen.items() if not task.isdigit()}


def _data(folder: Path) -> Path:
    """Draw few images: pages of a large file that are read for the first time would look like growth."""
    chance, file = np.random.default_rng(0), folder / "data.npz"
    arrays: dict[str, Any] = {}
    for name, count in (("train", 2000), ("test", 100)):
        arrays[f"x_{name}"] = chance.integers(0, 256, (count, 8, 8, 1), np.uint8)
        arrays[f"y_{name}"] = chance.integers(0, 10, count).astype(np.int64)
    np.savez(file, **arrays)
    return file


def _reached(run: Path) -> int:
    try:
        return int((run / "checkpoints" / "reached").read_text().strip() or 0)
    except FileNotFoundError:
        return 0


def growth(seen: Sequence[tuple[int, int]], steps: int) -> Growth:
    """Lay a line through the medians of spans of steps, the first half left out."""
    edges = np.linspace(steps / 2, steps, SPANS + 1)
    points = []
    for low, high in itertools.pairwise(edges):
        within = [(step, size) for step, size in seen if low <= step < high]
        if not within:
            sys.exit(f"nothing was seen between the steps {low:.0f} and {high:.0f}: take more of them")
        points.append([statistics.median(each) for each in zip(*within, strict=True)])
    x, y = np.array(points).T / [[1000], [1000]]  # thousands of steps, kB
    line, residuals, *_ = np.polyfit(x, y, 1, full=True)
    left = float(residuals[0]) if len(residuals) else 0.0
    error = T_OF_SPANS * (left / (SPANS - 2) / np.sum((x - x.mean()) ** 2)) ** 0.5
    return Growth(y[0] / 1000, y[-1] / 1000, float(line[0]), float(error))


def main() -> None:
    """Read the flags, train, and put the table into the page."""
    text = (__doc__ or "").format(least=LEAST, enough=ENOUGH)
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", default=list(CLUSTERS), metavar="STRATEGY")
    parser.add_argument("--steps", type=int, default=20_000)
    flags: Any = parser.parse_args()
    growing = []
    for name in flags.strategies:
        with tempfile.TemporaryDirectory(prefix="memory-") as folder:
            seen = watched(name, flags.steps, Path(folder))
        rows = []
        for task, points in sorted(seen.items()):
            found = growth(points, flags.steps)
            growing += [f"{task} of {name}"] * found.is_sure
            cells = [
                task,
                f"{found.first:.1f} MB",
                f"{found.last:.1f} MB",
                f"{found.slope:+.1f} ± {found.error:.1f} kB",
                "yes" if found.is_sure else "no",
            ]
            rows.append(cells)
        columns = (f"`{name}`", "half-way", "at the end", "in 1000 steps", "grows")
        put(f"memory {name}", f"{flags.steps} steps; {machine()}.", table(columns, rows))
    if growing and flags.steps >= ENOUGH:
        sys.exit(f"{', '.join(growing)}: resident size grows with the steps")


if __name__ == "__main__":
    main()
