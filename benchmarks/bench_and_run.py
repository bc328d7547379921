"""Compare the speed that `tfdist bench` finds for a config with that at which the same config then trains.

    python benchmarks/bench_and_run.py [--rounds 5] [--steps 300] [CONFIG ...]

Both in turns, as a user would type them. Of the bench it is the row with as many workers as the config has;
of the run the steps after the first hundred, by the times of the points that TensorBoard shows. The bench
binds workers to cores, so the run does that here too (`launch.pin`). What others disturb is done again.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from processes import outside_seconds
from results import machine, put, spread, table
from rounds import alone
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tfdist.trainer.config import read_config

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = ("mwms2w", "ps2w", "ps2w-sync", "cifar10-mwms2w")
MOST_OUTSIDE = 0.1  # of a core's time
APART = 50  # steps from point to point of the curve


class Pair(NamedTuple):
    """Record the examples a second of the bench and of the run, and which part of a core others had."""

    said: float
    ran: float
    outside: float


def pair(config: str, workers: int, batch: int, steps: int) -> Pair:
    """Measure a config once with the bench, and then in a run."""
    begun, before = time.monotonic(), outside_seconds()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        file, run = folder / "found.json", folder / "run"
        _type("bench", config, f"--workers={workers}", "--rounds=1", f"--steps={steps}", f"--json={file}")
        [said] = (
            row["examples_per_second"]
            for row in json.loads(file.read_text())["rows"]
            if row["workers"] == workers and not row["name"].startswith("one process")
        )
        total = 2 * APART + steps
        changes = {
            "train.steps": total,
            "summaries.every": APART,
            "evaluation.every": total,  # the end, as that of what is saved
            "checkpoint.every": total,
            "launch.pin": "true",
        }
        _type(
            "train", config, f"--run_dir={run}", *(f"--set={key}={value}" for key, value in changes.items())
        )
        events = EventAccumulator(str(run / "summaries" / "train"), size_guidance={"tensors": 0})
        events.Reload()
        # Answers of asynchronous workers come some at once: from point to point the speed goes up and down.
        points = [each for each in events.Tensors("examples per second") if each.step >= 2 * APART]
        ran = (points[-1].step - points[0].step) / (points[-1].wall_time - points[0].wall_time)
    outside = (outside_seconds() - before) / (time.monotonic() - begun)
    return Pair(said, ran * batch, max(0.0, outside))


def _type(verb: str, config: str, *words: str) -> None:
    command = [sys.executable, "-m", f"tfdist.{verb}", "--config", config, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")


def main() -> None:
    """Read the flags, measure in turns, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="*", default=[str(CONFIGS / f"{name}.yaml") for name in NAMES])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--others", type=float, default=MOST_OUTSIDE, help="share of a core's time for others"
    )
    flags: Any = parser.parse_args()
    rows = []
    for config in flags.configs:
        read = read_config(config, [])
        workers, batch = read.find_cluster().size("worker"), read.config.data.batch_size
        measure = functools.partial(pair, config, workers, batch, flags.steps)
        pairs = []
        for _ in range(flags.rounds):
            pairs.append(alone(measure, lambda found: found.outside, flags.others))
            print(f"{config}: {pairs[-1]}", flush=True)
        cells = [
            f"`{Path(config).name}`",
            spread([each.said for each in pairs], ".0f"),
            spread([each.ran for each in pairs], ".0f"),
            spread([each.said / each.ran for each in pairs], ".2f"),
            f"{max(each.outside for each in pairs):.0%}",
        ]
        rows.append(cells)
    head = f"Median and range of {flags.rounds} pairs, in turns; {flags.steps} steps; {machine()}."
    columns = ("config", "bench, examples/s", "run, examples/s", "bench / run", "others, of a core")
    put("bench and run", head, table(columns, rows))


if __name__ == "__main__":
    main()
