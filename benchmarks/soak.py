"""Inflict random faults on training, as long as you like, by the real command line; count what they cost.

    python benchmarks/soak.py [--seconds 600] [--seed 0] [--steps 1000]

Runs of all five strategies follow one another. Each is hit six times, at moments and in tasks drawn from
the seed. It has to end with exactly the steps that it was asked for, go on each time at the newest whole
checkpoint, and leave nothing behind; else the script ends, and says what broke. The table goes into
docs/results.md.
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from results import machine, put, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from proofs import prove_exact, prove_lost, prove_nothing_left
from schedule import Hit, draw, endure
from setups import EVERY, SETUPS, config
from training import Training

_MOMENTS = ("start", "step", "checkpoint", "torn", "notice")
_MOMENTS_OF_CLUSTERS = (*_MOMENTS, "silence")  # which there has to be somebody to notice
_ENDS = ("last", "export")
_HITS = 6


class Run(NamedTuple):
    """Record the faults of a run, and how many steps were lost to them."""

    hits: list[Hit]
    steps_lost: int


def main() -> None:
    """Read the flags, run until the time is over, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    flags = parser.parse_args()
    end = time.monotonic() + flags.seconds
    found: dict[str, list[Run]] = {name: [] for name in SETUPS}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for number, name in enumerate(itertools.cycle(SETUPS)):
            if time.monotonic() > end:
                break
            found[name].append(run(name, flags.seed + number, flags.steps, Path(folder), str(number)))
            print(f"{name}: {_HITS} faults, all recovered from", flush=True)
    head = f"Runs of {flags.steps} steps with a checkpoint every {EVERY}; seed {flags.seed}; {machine()}."
    columns = (
        "strategy",
        "runs",
        "faults",
        "recovered from",
        "steps lost a fault, and most in a run",
        "until a newer checkpoint, median",
        "worst",
    )
    put("soak", head, table(columns, rows_of(found)))


def run(name: str, seed: int, steps: int, folder: Path, of_run: str) -> Run:
    """Train once under a strategy, hit all the while; give what was seen."""
    chance, setup = random.Random(seed), SETUPS[name]
    kinds = _MOMENTS_OF_CLUSTERS if setup.cluster else _MOMENTS
    moments = [*chance.choices(kinds, k=_HITS - 1), chance.choice(_ENDS)]
    with Training(folder / of_run, config(name, steps), str(folder / "cache")) as training:
        hits = endure(training, setup, draw(seed, setup, moments))
    in_part = sum(hit.is_alone for hit in hits) if name == "parameter_server" else 0
    prove_exact(training, setup.replicas, in_part=in_part)
    prove_lost(training, hits)
    prove_nothing_left(training)
    return Run(hits, training.report()["steps_lost"])


def rows_of(found: dict[str, list[Run]]) -> list[list[str]]:
    """Make a row for each strategy."""
    rows = []
    for name, runs in found.items():
        hits = [hit for run in runs for hit in run.hits]
        seconds = [hit.seconds for hit in hits if hit.seconds is not None]
        if not seconds:
            continue
        cells = [
            f"`{name}`",
            str(len(runs)),
            str(len(hits)),
            str(len(hits)),
            f"{sum(run.steps_lost for run in runs) / len(hits):.0f} ({max(run.steps_lost for run in runs)})",
            f"{statistics.median(seconds):.1f} s",
            f"{max(seconds):.1f} s (n = {len(seconds)})",
        ]
        rows.append(cells)
    return rows


if __name__ == "__main__":
    main()
