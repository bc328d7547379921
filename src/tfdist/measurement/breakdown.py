"""Say where the time of a step goes.

What the tasks have measured is taken as it is. Where nobody can measure the exchange (in TensorFlow's
collectives, between devices, with parameter servers), it is what a step takes longer than the same worker's
with the same part of the batch, computing alone; what was found in that way is named as derived.
"""

import statistics
from dataclasses import dataclass

from tfdist.measurement.records import Record, Sample

__all__ = ["NAMES", "Parts", "parts_of"]

NAMES = ("input", "compute", "exchange", "wait", "rest")


@dataclass(frozen=True)
class Parts:
    """Hold the seconds of a step.

    Attributes:
        input: Waiting for the next batch.
        compute: Forward and backward.
        exchange: Adding gradients up, or fetching variables and sending gradients.
        wait: Waiting for tasks that have not come to the exchange; None where that is part of the exchange.
        rest: What remains of a step: the update of the variables, and the calls of the graph.
        derived: Which of them were found by difference from another run.
    """

    input: float
    compute: float
    exchange: float
    wait: float | None
    rest: float
    derived: frozenset[str] = frozenset()

    @property
    def step(self) -> float:
        """Give all of it."""
        return self.input + self.compute + self.exchange + (self.wait or 0.0) + self.rest

    def share(self, name: str) -> float:
        """Give the share of a step that one of them has."""
        return (getattr(self, name) or 0.0) / self.step


def parts_of(sample: Sample, alone: Sample | None = None) -> Parts:
    """Take a step apart, on the average over the tasks that compute.

    Args:
        sample: What was measured.
        alone: The same of one process with one worker's part of the batch and of the machine.
    """
    if sample.records[0].exchange in ("ring", "none"):
        return _mean([_measured(each) for each in sample.records])
    return _by_difference(sample, None if alone is None else parts_of(alone))


def _measured(record: Record) -> Parts:
    # What the ring has taken to agree on whether all have data is in the time that the data have taken.
    data = max(0.0, record.asked - record.agreeing)
    around = record.step - data - record.moving - record.waiting
    known = record.computing.get(record.task)
    compute = around if known is None else min(known, around)
    derived = frozenset(["compute"] if known is None else [])
    return Parts(data, compute, record.moving, record.waiting, max(0.0, around - compute), derived)


def _mean(parts: list[Parts]) -> Parts:
    values = {name: statistics.fmean(getattr(each, name) for each in parts) for name in NAMES}
    return Parts(**values, derived=parts[0].derived)


def _by_difference(sample: Sample, alone: Parts | None) -> Parts:
    exchange = sample.records[0].exchange
    asked = statistics.fmean(each.asked for each in sample.records)
    step = sample.step
    derived = {"exchange", "rest"}
    rest = 0.0 if alone is None else alone.rest
    known = list(sample.records[0].computing.values())
    compute = statistics.fmean(known) if known else 0.0
    if exchange == "servers" or not known:
        # The variables are fetched while a worker computes, so its own clock does not tell the two apart.
        compute = compute if alone is None else alone.compute
        derived.add("compute")
    data = asked
    if exchange == "collectives" and alone is not None:
        # All agree on whether there are data, so each has waited for the others too.
        data = min(asked, alone.input)
        derived.add("input")
    data, compute = min(data, step), min(compute, max(0.0, step - data))
    rest = min(rest, max(0.0, step - data - compute))
    return Parts(data, compute, max(0.0, step - data - compute - rest), None, rest, frozenset(derived))
