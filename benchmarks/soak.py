"""Inflict random faults on training, as long as you like, by the real command line; count what they cost.

    python benchmarks/soak.py [--seconds 600 | --faults 1000] [--seed 0] [--steps 1000] [--keep FILE]
        [--engines]

Runs of all five strategies follow one another, and runs on two hosts, which are network namespaces: there
the link is hit. Each is hit six times, at moments and in tasks drawn from the seed. It has to end with
exactly the steps that it was asked for, go on each time at the newest whole checkpoint, and leave nothing
behind; else the script says what broke, counts none of its faults as recovered from, and ends with status 1
after the other runs. The tables go into docs/results.md.

With --engines, a scheduler starts the tasks: Slurm on three nodes, which are network namespaces, or the
rules of Kubernetes for pods, which are containers. Three times in each run a node is drained or lost, a job
preempted, or a pod evicted. The run has to end with the bits of one that nothing happened to. This needs
root, Slurm and Docker.

--keep adds each run that has ended to a file, and the tables are of all runs in it: a long soak can be done
in pieces. --faults is then the number in all.
"""

import argparse
import functools
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

from results import machine, put, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engines"))

import links
import scheduled
from hosts import CLUSTERS, begun_with
from proofs import prove_exact, prove_lost, prove_nothing_left
from schedule import OF_A_STEP, Fault, Hit, draw, endure, possible, prepared
from setups import EVERY, SETUPS, config
from training import Training
from wire import why_no_wire

_MOMENTS = ("start", "step", "checkpoint", *OF_A_STEP)
_OF_CLUSTERS = ("silence",)  # which there has to be somebody to notice
_ENDS = ("last", "export")
_HITS, _HITS_OF_ENGINES = 6, 3
_MEANWHILE = 5000  # steps
Trial: TypeAlias = Callable[[int, int, Path, int, list[Fault], list[Hit]], None]
_COLUMNS = (
    "faults",
    "recovered from",
    "steps lost a fault, and most",
    "until a newer checkpoint, median",
    "worst",
)


@dataclass
class Seen:
    """Record of a fault how many steps were done again, and how long it took until a newer checkpoint."""

    kind: str
    steps_lost: int
    seconds: float | None


@dataclass
class Run:
    """Record the faults that a run was hit by, what they did, and whether it ended as it has to.

    Attributes:
        strategy: Its name.
        seed: What the faults were drawn from.
        steps: How many it was asked for.
        machine: What it ran on, with versions.
        faults: Their kinds. Those of a broken run include the one that broke it, of which nothing was seen.
        hits: What was seen of each fault.
        is_whole: Whether the run ended as if nothing had happened.
    """

    strategy: str
    seed: int
    steps: int
    machine: str
    faults: list[str] = field(default_factory=list)
    hits: list[Seen] = field(default_factory=list)
    is_whole: bool = False


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
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--engines", action="store_true")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run under way is taken down
    end = time.monotonic() + flags.seconds
    runs = kept(flags.keep)
    begun = len(runs)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for number in itertools.count(begun):
            left = None if flags.faults is None else flags.faults - sum(len(run.faults) for run in runs)
            if (left is None and time.monotonic() > end) or (left is not None and left <= 0):
                break
            trials = possible_trials_of_engines() if flags.engines else possible_trials()
            if not trials:
                sys.exit("there is no engine here")
            name = list(trials)[number % len(trials)]
            most = _HITS_OF_ENGINES if flags.engines else _HITS
            count = most if left is None else min(most, left)
            ended = run(
                name, trials[name], flags.seed + number, flags.steps, Path(folder, str(number)), count
            )
            runs.append(ended)
            keep(flags.keep, ended)
            print(f"{name}: {len(ended.faults)} faults, {recovered(ended)} recovered from", flush=True)
    by_strategy = table(("strategy", "runs", *_COLUMNS), rows_by_strategy(runs))
    by_fault = table(("fault", *_COLUMNS), rows_by_fault(runs))
    if flags.engines:
        put("soak of engines", head(runs), by_strategy, by_fault)
    else:
        put("soak", head(runs), by_strategy, by_fault)
    if not all(each.is_whole for each in runs[begun:]):
        sys.exit("not every run ended as it has to: see above")


def kept(file: Path | None) -> list[Run]:
    """Read the runs that earlier calls have kept in a file."""
    if file is None or not file.exists():
        return []
    runs = [Run(**json.loads(line)) for line in file.read_text().splitlines()]
    for each in runs:
        each.hits = [Seen(**hit) for hit in each.hits]  # type: ignore[arg-type]
    return runs


def keep(file: Path | None, run: Run) -> None:
    """Add a run to a file."""
    if file is not None:
        with file.open("a") as opened:
            opened.write(json.dumps(asdict(run)) + "\n")


def head(runs: Sequence[Run]) -> str:
    """Describe what the tables are of; runs on other machines or with other versions are counted apart."""
    seeds = [run.seed for run in runs]
    on = Counter((run.steps, run.machine) for run in runs)
    told = [f"{count} of {steps} steps on {where}" for (steps, where), count in on.items()]
    return f"Runs with a checkpoint every {EVERY}; seeds {min(seeds)} to {max(seeds)}; {'; '.join(told)}."


def run(name: str, trial: Trial, seed: int, steps: int, folder: Path, count: int) -> Run:
    """Train once, hit all the while; give what was seen."""
    run = Run(name, seed, steps, machine())
    faults: list[Fault] = []
    hits: list[Hit] = []
    try:
        trial(seed, steps, folder, count, faults, hits)
        run.is_whole = True
    except AssertionError as broken:
        print(f"{name}, seed {seed}: {broken}", file=sys.stderr, flush=True)
        faults = faults[: len(hits) + 1]
    run.faults = [fault.kind for fault in faults]
    run.hits = [Seen(hit.fault.kind, hit.steps_lost, hit.seconds) for hit in hits]
    return run


def on_one_host(
    name: str, seed: int, steps: int, folder: Path, count: int, faults: list[Fault], hits: list[Hit]
) -> None:
    """Train by the launcher, under a strategy."""
    chance, setup = random.Random(seed), SETUPS[name]
    moments = possible([word for word in _MOMENTS if setup.cluster or word not in _OF_CLUSTERS])
    faults += draw(seed, setup, [*chance.choices(moments, k=count - 1), chance.choice(_ENDS)])
    training = Training(folder, config(name, steps), str(folder.parent / "cache"))
    with prepared(training, faults), training:
        endure(training, setup, faults, hits)
        prove(name, training, hits)


def on_two_hosts(
    name: str, seed: int, steps: int, folder: Path, count: int, faults: list[Fault], hits: list[Hit]
) -> None:
    """Train by tasks on two hosts, under a strategy."""
    faults += links.draw(seed, count)
    if name == "parameter_server":
        # While a worker is cut off and starts again, the other one continues; it must not be done before.
        faults.sort(key=lambda fault: fault.harm != links.CUT)
        steps += _MEANWHILE * sum(fault.harm == links.CUT for fault in faults)
    cache = str(folder.parent / "cache")
    with begun_with(name, folder, cache, steps=steps, is_patient=True) as (wire, tasks):
        links.endure(wire, tasks, faults, hits)
        prove(name, tasks.lead, hits)


def by_an_engine(
    engine: str,
    name: str,
    seed: int,
    steps: int,
    folder: Path,
    count: int,
    faults: list[Fault],
    hits: list[Hit],
) -> None:
    """Train by tasks that a scheduler starts, under a strategy."""
    faults += scheduled.draw(seed, engine, count)
    cache = folder.parent / "cache"
    straight = _straight(name, cache, steps)
    with scheduled.training_by(engine, name, folder, str(cache), steps) as training:
        scheduled.endure(training, seed, faults, hits)
        scheduled.prove(training, straight, SETUPS[name].replicas, hits)


@functools.cache
def _straight(name: str, cache: Path, steps: int) -> Training:
    return scheduled.straight(name, cache.with_name(f"straight-{name}"), str(cache), steps)


def prove(name: str, training: Training, hits: Sequence[Hit]) -> None:
    """Check that a run has ended as if nothing had happened."""
    in_part = sum(hit.is_alone for hit in hits) if name == "parameter_server" else 0
    prove_exact(training, SETUPS[name].replicas, in_part=in_part)
    prove_lost(training, hits)
    prove_nothing_left(training)


@functools.cache
def possible_trials() -> dict[str, Trial]:
    """Return by name how to train here, and say what cannot be done."""
    trials: dict[str, Trial] = {name: functools.partial(on_one_host, name) for name in SETUPS}
    if why := why_no_wire():
        print(f"left out: two hosts: {why}", flush=True)
    else:
        trials.update({f"{name}, two hosts": functools.partial(on_two_hosts, name) for name in CLUSTERS})
    return trials


@functools.cache
def possible_trials_of_engines() -> dict[str, Trial]:
    """Return by name how engines that are installed can train here, and say what cannot be done."""
    trials: dict[str, Trial] = {}
    for name, engine in itertools.product(scheduled.STRATEGIES, scheduled.ENGINES):
        if why := scheduled.why_not(engine):
            print(f"left out: {name}, {engine}: {why}", flush=True)
        else:
            trials[f"{name}, {engine}"] = functools.partial(by_an_engine, engine, name)
    return trials


def recovered(run: Run) -> int:
    """Count the faults that a run has recovered from: all of one that is whole, and none of a broken one."""
    return len(run.hits) if run.is_whole else 0


def rows_by_strategy(runs: Sequence[Run]) -> list[list[str]]:
    """Make a row for each strategy."""
    rows = []
    for name in dict.fromkeys(run.strategy for run in runs):
        own = [run for run in runs if run.strategy == name]
        faults = sum(len(run.faults) for run in own)
        lost = [sum(hit.steps_lost for hit in run.hits) for run in own]
        strategy, comma, where = name.partition(", ")
        cells = [
            f"`{strategy}`{comma}{where}",
            str(len(own)),
            str(faults),
            str(sum(map(recovered, own))),
            f"{sum(lost) / faults:.0f} (a run: {max(lost)})",
            *times(hit for run in own for hit in run.hits),
        ]
        rows.append(cells)
    return rows


def rows_by_fault(runs: Sequence[Run]) -> list[list[str]]:
    """Make a row for each kind of fault."""
    rows = []
    for kind in sorted({kind for run in runs for kind in run.faults}):
        hits = [hit for run in runs for hit in run.hits if hit.kind == kind]
        whole = [hit for run in runs if run.is_whole for hit in run.hits if hit.kind == kind]
        faults = sum(run.faults.count(kind) for run in runs)
        lost = [hit.steps_lost for hit in hits]
        most = f"{sum(lost) / len(lost):.0f} (a fault: {max(lost)})" if lost else "-"
        rows.append([kind, str(faults), str(len(whole)), most, *times(hits)])
    return rows


def times(hits: Iterable[Seen]) -> tuple[str, str]:
    """Format how long it took until a newer checkpoint, where that was seen: the median and the worst."""
    seconds = [hit.seconds for hit in hits if hit.seconds is not None]
    if not seconds:
        return "-", "-"
    return f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s (n = {len(seconds)})"


if __name__ == "__main__":
    main()
