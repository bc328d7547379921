"""Say in plain words what bounds a config, and what to do."""

import statistics
from collections.abc import Iterator

from tfdist.measurement.scaling import Row, Scaling
from tfdist.measurement.ways import Bench

__all__ = ["caveats", "verdict"]

# From these shares of a step on, something bounds it; what takes less is the price of training at all.
_BOUNDS = {"input": 0.10, "exchange": 0.15, "wait": 0.10, "rest": 0.20}
_GOOD, _FAIR = 0.85, 0.60  # efficiencies
_APART = 1.10  # times as long as the others: then a task is slower, and does not only vary
_OUTSIDE = 0.05  # of a core
_SPREAD = 0.10
_SHORTEST = 1.0  # seconds: in less, what happens now and then happens or does not


def verdict(found: Scaling) -> list[str]:
    """Give what was found in sentences, the most important one first."""
    row = found.rows[-1]
    return [*_bound(found.bench, row), *_scaling(found, row), *_machine(found, row)]


def caveats(outside: float | None, cores: int, spread: float, shortest: float) -> list[str]:
    """Say what makes the figures uncertain."""
    said = []
    if outside is None:
        said.append("Whether others were busy on these cores cannot be seen on this system.")
    elif outside > _OUTSIDE:
        kept = f"Others kept up to {outside:.1f} of {cores} cores busy meanwhile"
        said.append(f"{kept}: measure again when the machine is free before you believe any of it.")
    if shortest < _SHORTEST:
        said.append(f"The shortest run was measured for {shortest:.2g} s: take more --steps.")
    if spread > _SPREAD:
        said.append(f"The rounds are {spread:.0%} apart: differences below that mean nothing.")
    return said


def _bound(bench: Bench, row: Row) -> Iterator[str]:
    parts = row.parts
    shares = {name: parts.share(name) for name, least in _BOUNDS.items() if parts.share(name) >= least}
    if not shares:
        remedy = "A faster step needs faster computing: see what --tune finds here"
        yield f"Computing bounds it: {parts.share('compute'):.0%} of a step. {remedy}."
        return
    say = {"input": _input, "exchange": _exchange, "wait": _wait, "rest": _rest}
    for place, name in enumerate(sorted(shares, key=lambda name: -shares[name])):
        what, remedy = say[name](bench, row, f"{shares[name]:.0%}")
        verb = "bounds it" if place == 0 and shares[name] > parts.share("compute") else "holds it up"
        yield f"{what.format(verb=verb)}. {remedy}."


def _input(bench: Bench, row: Row, share: str) -> tuple[str, str]:
    augment = bench.settings.config.data.augment
    less = f", or alter images less than `data.augment: {augment}` does" if augment != "none" else ""
    what = f"The input pipeline {{verb}}: {share} of a step waits for the next batch"
    return what, f"Give each task more cores{less}"


def _exchange(bench: Bench, row: Row, share: str) -> tuple[str, str]:
    said, record = bench.settings.config.communication, row.samples[0].records[0]
    size = f"{record.parameters / 1e6:.1f} MB of variables"
    what = f"The exchange {{verb}}: it takes {share} of a step, for {size}"
    larger = "A larger data.batch_size exchanges less often, which changes what is computed"
    if record.exchange == "collectives":
        return what, f"On CPUs `communication: {{implementation: tcp}}` is faster: --tune tries it. {larger}"
    if record.exchange == "servers":
        larger = f"More ps tasks share the bytes among them. {larger}"
    if record.exchange in ("ring", "servers") and said.dtype in (None, "float32"):
        halved = "Between machines `communication: {implementation: tcp, dtype: bfloat16}` halves the bytes"
        return what, f"{halved}, and rounds what is sent. {larger}"
    return what, larger


def _wait(bench: Bench, row: Row, share: str) -> tuple[str, str]:
    what = f"Waiting {{verb}}: for {share} of a step a worker waits for the others"
    computing = _computing(row)
    slowest = max(computing, key=lambda task: computing[task])
    others = [seconds for task, seconds in computing.items() if task != slowest]
    if others and computing[slowest] > _APART * statistics.median(others):
        taken, usual = 1000 * computing[slowest], 1000 * statistics.median(others)
        return what, f"{slowest} computes {taken:.1f} ms, the others {usual:.1f}: see what else runs there"
    return what, "None of them is slower than the others: their steps vary. Let nothing else run beside them"


def _computing(row: Row) -> dict[str, float]:
    """Give the median of what each task computes for a step."""
    tasks = row.samples[0].records[0].computing
    return {
        task: statistics.median(each.records[0].computing.get(task, 0.0) for each in row.samples)
        for task in tasks
    }


def _rest(bench: Bench, row: Row, share: str) -> tuple[str, str]:
    what = f"What is around the computing {{verb}}: {share} of a step goes into calls and updates"
    if bench.settings.config.train.steps_per_execution < 10:
        return what, "`train: {steps_per_execution: 10}` calls the graph less often"
    return what, "A larger data.batch_size would do both less often, which changes what is computed"


def _scaling(found: Scaling, row: Row) -> Iterator[str]:
    workers = row.way.workers
    if found.bench.strategy == "mirrored":
        yield f"{found.bench.replicas} devices train {row.speedup:.2f} times as fast as one."
        return
    if found.bench.is_one_process:
        return
    if workers > found.cores:
        yield f"{workers} workers share {found.cores} cores here: that says nothing of machines of their own."
        return
    told = f"Efficiency {row.efficiency:.2f} at {workers} worker{'s' if workers > 1 else ''}"
    if row.efficiency >= _GOOD:
        yield f"{told}: more workers pay."
    elif row.efficiency >= _FAIR:
        yield f"{told}: more workers pay, but not in full."
    else:
        yield f"{told}: more workers hardly pay before that has changed."


def _machine(found: Scaling, row: Row) -> Iterator[str]:
    if found.machine is None:
        return
    best = max(found.rows, key=lambda each: each.speed)
    ratio, whole = found.machine.speed / best.speed, found.machine.way.name
    name = best.way.name if best is not found.rows[0] else "one worker's share of the machine"
    if ratio >= 1:
        yield f"On this machine alone no cluster pays: {whole}, is {ratio:.2f} times as fast as {name}."
    else:
        reach = "reach" if best.way.workers > 1 else "reaches"
        yield f"On this machine {name} {reach} {1 / ratio:.2f} times the speed of {whole}."
