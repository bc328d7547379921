"""Show the measurements: tables for people, values for machines, and a plot."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfdist._utils.plotting import new_figure, save
from tfdist._utils.terminal_size_and_tables import console_for_tables, table_that_fits
from tfdist.benchmark.breakdown import NAMES, Parts
from tfdist.benchmark.scaling import Row, Scaling
from tfdist.benchmark.tuning import Tried, Tuning

_MAX_OTHER_CORES = 0.05  # cores
_MAX_SPREAD = 0.10
_MIN_SECONDS = 1.0  # in a shorter run, rare events distort the result
_BY_DIFFERENCE = (
    "~ derived from the same worker computing alone; – part of the exchange; all others are measured"
)


def show_scaling(scaling: Scaling) -> None:
    """Print the table, what bounds a step of the largest cluster, and how certain that is."""
    rows = [*scaling.rows, *([scaling.machine] if scaling.machine else [])]
    names = ("trained by", "examples/s", "speed-up", "efficiency", "ms a step", *NAMES, "CPU ms", "MB sent")
    cells = []
    for row in rows:
        is_cluster = row is not scaling.machine and not scaling.bench.is_one_process
        efficiency = f"{row.efficiency:.2f}" if is_cluster else ""
        speeds = spread(row.speeds, ".0f")
        shares = [_share(row.parts, name) for name in NAMES]
        processors, sent = _median(row.samples, "processors", 1e3), _median(row.samples, "sent", 1e-6)
        figures = (
            speeds,
            f"{row.speedup:.2f}",
            efficiency,
            f"{1000 * row.parts.step:.1f}",
            *shares,
            processors if float(processors) else "",
        )
        cells.append((row.scenario.name, *figures, sent if float(sent) else ""))
    console = console_for_tables()
    console.print(_heading(scaling))
    console.print(table_that_fits(console, names, cells))
    if any(row.parts.derived for row in rows):
        console.print(_BY_DIFFERENCE + "\n")
    last = scaling.rows[-1]
    share = f"{last.parts.share(last.parts.largest):.0%} of a step"
    console.print(f"{last.scenario.name}: bound by {last.parts.largest}, {share}", style="bold")
    if last.scenario.workers > scaling.cores:
        sharing = f"{last.scenario.workers} workers share {scaling.cores} cores here"
        console.print(f"{sharing}: with one machine per worker the result differs.", style="yellow")
    for sentence in caveats(
        scaling.outside, scaling.cores, max(row.spread for row in rows), scaling.shortest
    ):
        console.print(sentence, style="yellow")


def show_tuning(tuning: Tuning) -> None:
    """Print what was tried, and what to put into the config."""
    from rich.box import SIMPLE
    from rich.table import Table

    console = console_for_tables()
    for title, group in (
        ("the same mathematics", tuning.same),
        ("changes the mathematics: your decision", tuning.other),
    ):
        if not group:  # possible with --only
            continue
        table = Table(box=SIMPLE)
        table.add_column(title, no_wrap=True)
        for name in ("examples/s", "times the config as it is", "CPU ms", ""):
            table.add_column(name)
        for tried in group:
            table.add_row(*_tried_row(tried))
        console.print(table)
    for line in tuning.advice:
        console.print(line, style="bold")
    for sentence in caveats(tuning.outside, tuning.cores, tuning.spread, tuning.shortest):
        console.print(sentence, style="yellow")


def as_values(result: Scaling | Tuning) -> dict[str, Any]:
    """Return all measurements as values for JSON."""
    if isinstance(result, Tuning):
        groups = {"same": result.same, "other": result.other}
        tried = {name: [_tried_values(change) for change in group] for name, group in groups.items()}
        return {
            **tried,
            "yaml": result.yaml,
            "environment": dict(result.environment),
            "outside": result.outside,
        }
    rows = [*result.rows, *([result.machine] if result.machine else [])]
    return {
        "config": result.bench.settings.path,
        "strategy": result.bench.strategy,
        "weak": result.bench.weak,
        "cores": result.cores,
        "outside": result.outside,
        "rows": [_row_values(row) for row in rows],
        "bound_by": result.rows[-1].parts.largest,
    }


def caveats(outside: float | None, cores: int, spread: float, shortest: float) -> list[str]:
    """Return why the figures are uncertain, one sentence per reason."""
    sentences = []
    if outside is None:
        sentences.append("This system does not show whether other programs used these cores.")
    elif outside > _MAX_OTHER_CORES:
        busy = f"Other programs kept up to {outside:.1f} of {cores} cores busy meanwhile"
        sentences.append(f"{busy}: measure again when the machine is free.")
    if shortest < _MIN_SECONDS:
        sentences.append(f"The shortest run was measured for {shortest:.2g} s: use more --steps.")
    if spread > _MAX_SPREAD:
        sentences.append(f"The rounds differ by {spread:.0%}: smaller differences mean nothing.")
    return sentences


def draw(scaling: Scaling, path: Path) -> None:
    """Plot the examples per second over the number of workers, and the parts of a step."""
    figure = new_figure(11, 4)
    speed, parts = figure.subplots(1, 2)
    # In a cluster with ps tasks, one process is only the baseline, not a cluster of one worker.
    has_one = any(row.scenario.workers == 1 for row in scaling.rows[1:])
    rows = scaling.rows[1:] if has_one else scaling.rows
    counts = [row.scenario.workers for row in rows]
    below, above = zip(
        *((row.speed - min(row.speeds), max(row.speeds) - row.speed) for row in rows), strict=True
    )
    speed.errorbar(
        counts, [row.speed for row in rows], yerr=[below, above], marker=".", capsize=3, label="measured"
    )
    speed.plot(
        [0, max(counts)], [0, max(counts) * scaling.rows[0].speed], "--", color="grey", label="linear scaling"
    )
    if scaling.machine:
        speed.axhline(scaling.machine.speed, color="tab:orange", label=scaling.machine.scenario.name)
    speed.set(xlabel="workers", ylabel="examples/s", xticks=sorted(set(counts)))
    speed.legend()
    shown = [*scaling.rows, *([scaling.machine] if scaling.machine else [])]
    bottom = [0.0] * len(shown)
    for name in NAMES:
        heights = [1000 * (getattr(row.parts, name) or 0.0) for row in shown]
        parts.bar([row.scenario.name for row in shown], heights, bottom=bottom, label=name)
        bottom = [base + height for base, height in zip(bottom, heights, strict=True)]
    parts.set(ylabel="ms of a step")
    parts.tick_params(axis="x", labelsize=8)
    parts.legend()
    save(figure, path)


def _heading(scaling: Scaling) -> str:
    bench = scaling.bench
    batch = f"{bench.batch(bench.workers)} examples a step"
    if bench.strategy == "parameter_server":
        batch = f"{bench.batch(1)} examples a step of each worker"
    elif bench.weak:
        batch = f"{bench.part(1)} examples a step of each worker (--weak: each row trains on another batch)"
    cores = (
        f"{bench.cores} of {scaling.cores} cores for each worker"
        if bench.workers > 1
        else f"{scaling.cores} cores"
    )
    rounds = f"{bench.rounds} rounds in turns" if bench.rounds > 1 else "one round"
    runs = f"median and range of {rounds}, {bench.steps} steps each"
    return f"{bench.settings.path}: {bench.strategy}, {batch}, {cores}; {runs}"


def _share(parts: Parts, name: str) -> str:
    value = getattr(parts, name)
    if value is None:
        return "–"
    return f"{'~' if name in parts.derived else ''}{parts.share(name):.0%}"


def spread(values: Sequence[float], form: str) -> str:
    """Return the median and the range of several trials as text."""
    middle = sorted(values)[len(values) // 2]
    around = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{middle:{form}}{around}"


def _median(samples: Iterable[Any], name: str, factor: float) -> str:
    values = sorted(getattr(sample, name) for sample in samples)
    return f"{factor * values[len(values) // 2]:.1f}"


def _tried_row(tried: Tried) -> tuple[str, ...]:
    if tried.refused:
        return tried.name, "", "", "", tried.refused
    processors = _median(tried.samples, "processors", 1e3)
    ratios = spread(tried.ratios, ".2f")
    known = processors if float(processors) else ""
    return tried.name, spread(tried.speeds, ".0f"), ratios, known, tried.note


def _tried_values(tried: Tried) -> dict[str, Any]:
    return {
        "name": tried.name,
        "set": list(tried.scenario.changes),
        "environment": dict(tried.scenario.env),
        "examples_per_second": tried.speeds,
        "ratios": tried.ratios,
        "refused": tried.refused,
    }


def _row_values(row: Row) -> dict[str, Any]:
    import msgspec

    return {
        "name": row.scenario.name,
        "workers": row.scenario.workers,
        "examples_per_second": row.speed,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "seconds_of_a_step": {name: getattr(row.parts, name) for name in NAMES},
        "derived": sorted(row.parts.derived),
        "samples": msgspec.to_builtins(row.samples),
    }
