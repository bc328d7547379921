"""Inflict random faults on training, as long as you like, by the real command line; count what they cost.

    python benchmarks/soak.py [--seconds 600 | --faults 1000] [--seed 0] [--steps 1000]

Runs of all five strategies follow one another. Each is hit six times, at moments and in tasks drawn from
the seed. It has to end with exactly the steps that it was asked for, go on each time at the newest whole
checkpoint, and leave nothing behind; else the script says what broke, counts none of its faults as recovered
from, and ends with status 1 after the other runs. The tables go into docs/results.md.
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from results import machine, put, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from proofs import prove_exact, prove_lost, prove_nothing_left
from schedule import Fault, Hit, draw, endure
from setups import EVERY, SETUPS, config
from training import Training

_MOMENTS = ("start", "step", "checkpoint", "torn", "notice")
_MOMENTS_OF_CLUSTERS = (*_MOMENTS, "silence")  # which there has to be somebody to notice
_ENDS = ("last", "export")
_HITS = 6
_COLUMNS = (
    "faults",
    "recovered from",
    "steps lost a fault, and most",
    "until a newer checkpoint, median",
    "worst",
)


class Run(NamedTuple):
    """Record the faults that a run was hit by, what they did, and whether it ended as it has to.

    Attributes:
        faults: Those of a broken run include the one that broke it, which has no hit.
        hits: What each fault did.
        steps_lost: How many steps were done again.
        is_whole: Whether the run ended as if nothing had happened.
    """

    faults: list[Fault]
    hits: list[Hit]
    steps_lost: int
    is_whole: bool


def main() -> None:
    """Read the flags, run for so many faults or seconds, and put the tables into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--seconds", type=float, default=600.0)
    until.add_argument("--faults", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    flags = parser.parse_args()
    end = time.monotonic() + flags.seconds
    found: dict[str, list[Run]] = {name: [] for name in SETUPS}
    left = flags.faults
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for number, name in enumerate(itertools.cycle(SETUPS)):
            if (left is None and time.monotonic() > end) or (left is not None and left <= 0):
                break
            hits = _HITS if left is None else min(_HITS, left)
            ended = run(name, flags.seed + number, flags.steps, Path(folder), str(number), hits)
            found[name].append(ended)
            left = None if left is None else left - hits
            print(f"{name}: {len(ended.faults)} faults, {recovered(ended)} recovered from", flush=True)
    head = f"Runs of {flags.steps} steps with a checkpoint every {EVERY}; seed {flags.seed}; {machine()}."
    runs = [run for of_name in found.values() for run in of_name]
    by_strategy = table(("strategy", "runs", *_COLUMNS), rows_by_strategy(found))
    put("soak", head, by_strategy, table(("fault", *_COLUMNS), rows_by_fault(runs)))
    if not all(run.is_whole for run in runs):
        sys.exit("not every run ended as it has to: see above")


def run(name: str, seed: int, steps: int, folder: Path, of_run: str, count: int = _HITS) -> Run:
    """Train once under a strategy, hit all the while; give what was seen."""
    chance, setup = random.Random(seed), SETUPS[name]
    kinds = _MOMENTS_OF_CLUSTERS if setup.cluster else _MOMENTS
    faults = draw(seed, setup, [*chance.choices(kinds, k=count - 1), chance.choice(_ENDS)])
    hits: list[Hit] = []
    with Training(folder / of_run, config(name, steps), str(folder / "cache")) as training:
        try:
            endure(training, setup, faults, hits)
            in_part = sum(hit.is_alone for hit in hits) if name == "parameter_server" else 0
            prove_exact(training, setup.replicas, in_part=in_part)
            prove_lost(training, hits)
            prove_nothing_left(training)
        except AssertionError as broken:
            print(f"{name}, seed {seed}: {broken}", file=sys.stderr, flush=True)
            return Run(faults[: len(hits) + 1], hits, sum(hit.steps_lost for hit in hits), is_whole=False)
        return Run(faults, hits, training.report()["steps_lost"], is_whole=True)


def recovered(run: Run) -> int:
    """Count the faults that a run has recovered from: all of one that is whole, and none of a broken one."""
    return len(run.hits) if run.is_whole else 0


def rows_by_strategy(found: dict[str, list[Run]]) -> list[list[str]]:
    """Make a row for each strategy."""
    rows = []
    for name, runs in found.items():
        faults = sum(len(run.faults) for run in runs)
        if not faults:
            continue
        lost = [run.steps_lost for run in runs]
        cells = [
            f"`{name}`",
            str(len(runs)),
            str(faults),
            str(sum(map(recovered, runs))),
            f"{sum(lost) / faults:.0f} (a run: {max(lost)})",
            *times(hit for run in runs for hit in run.hits),
        ]
        rows.append(cells)
    return rows


def rows_by_fault(runs: list[Run]) -> list[list[str]]:
    """Make a row for each kind of fault."""
    rows = []
    for kind in sorted({fault.kind for run in runs for fault in run.faults}):
        hits = [hit for run in runs for hit in run.hits if hit.fault.kind == kind]
        whole = [hit for run in runs if run.is_whole for hit in run.hits if hit.fault.kind == kind]
        faults = sum(fault.kind == kind for run in runs for fault in run.faults)
        lost = [hit.steps_lost for hit in hits]
        most = f"{sum(lost) / len(lost):.0f} (a fault: {max(lost)})" if lost else "-"
        rows.append([kind, str(faults), str(len(whole)), most, *times(hits)])
    return rows


def times(hits: Iterable[Hit]) -> tuple[str, str]:
    """Format how long it took until a newer checkpoint, where that was seen: the median and the worst."""
    seconds = [hit.seconds for hit in hits if hit.seconds is not None]
    if not seconds:
        return "-", "-"
    return f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s (n = {len(seconds)})"


if __name__ == "__main__":
    main()
