"""Show what was measured: tables for people, values for machines, and a plot."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.measurement.breakdown import NAMES, Parts
from tfdist.measurement.scaling import Row, Scaling
from tfdist.measurement.tuning import Tried, Tuning
from tfdist.measurement.verdict import caveats, verdict
from tfdist.plots import new_figure, save
from tfdist.trial import spread

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_values", "draw", "show_scaling", "show_tuning"]

_WIDTH = 160
_BY_DIFFERENCE = (
    "~ found by difference from the same worker computing alone; – part of the exchange; the rest measured"
)


def show_scaling(found: Scaling) -> None:
    """Print the table and the verdict."""
    from rich.box import SIMPLE
    from rich.table import Table

    rows = [*found.rows, *([found.machine] if found.machine else [])]
    table = Table(box=SIMPLE)
    table.add_column("trained by", no_wrap=True)
    for name in ("examples/s", "speed-up", "efficiency", "ms a step", *NAMES, "CPU ms", "MB sent"):
        table.add_column(name)
    for each in rows:
        is_cluster = each is not found.machine and not found.bench.is_one_process
        efficiency = f"{each.efficiency:.2f}" if is_cluster else ""
        speeds = spread(each.speeds, ".0f")
        shares = [_share(each.parts, name) for name in NAMES]
        processors, sent = _middle(each.samples, "processors", 1e3), _middle(each.samples, "sent", 1e-6)
        table.add_row(
            each.way.name,
            speeds,
            f"{each.speedup:.2f}",
            efficiency,
            f"{1000 * each.parts.step:.1f}",
            *shares,
            processors,
            sent if float(sent) else "",
        )
    console = _console()
    console.print(_heading(found))
    console.print(table)
    if any(each.parts.derived for each in rows):
        console.print(_BY_DIFFERENCE + "\n")
    for sentence in verdict(found):
        console.print(sentence, style="bold")
    for sentence in caveats(found.outside, found.cores, max(each.spread for each in rows), found.shortest):
        console.print(sentence, style="yellow")


def show_tuning(found: Tuning) -> None:
    """Print what was tried, and what to put into the config."""
    from rich.box import SIMPLE
    from rich.table import Table

    console = _console()
    for title, group in (
        ("the same mathematics", found.same),
        ("changes what is computed: for you to decide", found.other),
    ):
        if not group:  # with --only, maybe
            continue
        table = Table(box=SIMPLE)
        table.add_column(title, no_wrap=True)
        for name in ("examples/s", "times the config as it is", "CPU ms", ""):
            table.add_column(name)
        for each in group:
            table.add_row(*_tried(each))
        console.print(table)
    for line in found.advice:
        console.print(line, style="bold")
    for sentence in caveats(found.outside, found.cores, found.spread, found.shortest):
        console.print(sentence, style="yellow")


def as_values(found: Scaling | Tuning) -> dict[str, Any]:
    """Give everything that was measured, as JSON has it."""
    if isinstance(found, Tuning):
        groups = {"same": found.same, "other": found.other}
        tried = {name: [_tried_values(each) for each in group] for name, group in groups.items()}
        return {**tried, "yaml": found.yaml, "environment": dict(found.environment), "outside": found.outside}
    rows = [*found.rows, *([found.machine] if found.machine else [])]
    return {
        "config": found.bench.settings.path,
        "strategy": found.bench.strategy,
        "weak": found.bench.weak,
        "cores": found.cores,
        "outside": found.outside,
        "rows": [_row_values(each) for each in rows],
        "verdict": verdict(found),
    }


def draw(found: Scaling, path: Path) -> None:
    """Draw the examples per second over the number of workers, and where the time of a step goes."""
    figure = new_figure(11, 4)
    speed, parts = figure.subplots(1, 2)
    # Beside ps tasks one worker is not one process, which then is only what the others are held against.
    has_one = any(each.way.workers == 1 for each in found.rows[1:])
    rows = found.rows[1:] if has_one else found.rows
    counts = [each.way.workers for each in rows]
    below, above = zip(
        *((each.speed - min(each.speeds), max(each.speeds) - each.speed) for each in rows), strict=True
    )
    speed.errorbar(
        counts, [each.speed for each in rows], yerr=[below, above], marker=".", capsize=3, label="measured"
    )
    speed.plot(
        [0, max(counts)], [0, max(counts) * found.rows[0].speed], "--", color="grey", label="without loss"
    )
    if found.machine:
        speed.axhline(found.machine.speed, color="tab:orange", label=found.machine.way.name)
    speed.set(xlabel="workers", ylabel="examples/s", xticks=sorted(set(counts)))
    speed.legend()
    shown = [*found.rows, *([found.machine] if found.machine else [])]
    bottom = [0.0] * len(shown)
    for name in NAMES:
        heights = [1000 * (getattr(each.parts, name) or 0.0) for each in shown]
        parts.bar([each.way.name for each in shown], heights, bottom=bottom, label=name)
        bottom = [one + other for one, other in zip(bottom, heights, strict=True)]
    parts.set(ylabel="ms of a step")
    parts.tick_params(axis="x", labelsize=8)
    parts.legend()
    save(figure, path)


def _heading(found: Scaling) -> str:
    bench = found.bench
    batch = f"{bench.batch(bench.workers)} examples a step"
    if bench.strategy == "parameter_server":
        batch = f"{bench.batch(1)} examples a step of each worker"
    elif bench.weak:
        batch = f"{bench.part(1)} examples a step of each worker (--weak: each row trains on another batch)"
    cores = (
        f"{bench.cores} of {found.cores} cores for each worker"
        if bench.workers > 1
        else f"{found.cores} cores"
    )
    rounds = f"{bench.rounds} rounds in turns" if bench.rounds > 1 else "one round"
    runs = f"median and range of {rounds}, {bench.steps} steps each"
    return f"{bench.settings.path}: {bench.strategy}, {batch}, {cores}; {runs}"


def _console() -> "Console":
    from rich.console import Console

    # A file or a pipe has no width; what is read there should not be cut.
    return Console(
        highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH
    )


def _share(parts: Parts, name: str) -> str:
    value = getattr(parts, name)
    if value is None:
        return "–"
    return f"{'~' if name in parts.derived else ''}{parts.share(name):.0%}"


def _middle(samples: Iterable[Any], name: str, factor: float) -> str:
    values = sorted(getattr(each, name) for each in samples)
    return f"{factor * values[len(values) // 2]:.1f}"


def _tried(each: Tried) -> tuple[str, ...]:
    if each.refused:
        return each.name, "", "", "", each.refused
    processors = _middle(each.samples, "processors", 1e3)
    ratios = spread(each.ratios, ".2f")
    return each.name, spread(each.speeds, ".0f"), ratios, processors, each.note


def _tried_values(each: Tried) -> dict[str, Any]:
    return {
        "name": each.name,
        "set": list(each.way.changes),
        "environment": dict(each.way.env),
        "examples_per_second": each.speeds,
        "ratios": each.ratios,
        "refused": each.refused,
    }


def _row_values(row: Row) -> dict[str, Any]:
    import msgspec

    return {
        "name": row.way.name,
        "workers": row.way.workers,
        "examples_per_second": row.speed,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "seconds_of_a_step": {name: getattr(row.parts, name) for name in NAMES},
        "derived": sorted(row.parts.derived),
        "samples": msgspec.to_builtins(row.samples),
    }
