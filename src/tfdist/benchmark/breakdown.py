"""Break the time of a step down into its parts.

Times that the tasks have measured are used as they are. TensorFlow's collectives, devices of one process
and parameter servers do not measure the exchange. Then the exchange is the difference to a step of the same
worker that computes alone, with the same part of the batch. A part that was found in this way is listed as
derived.
"""

import statistics
from dataclasses import dataclass

from tfdist.benchmark.task_measurements import Record, Sample

NAMES = ("input", "compute", "exchange", "wait", "rest")


@dataclass(frozen=True)
class Parts:
    """The parts of a step, in seconds.

    Attributes:
        input: Waiting for the next batch.
        compute: Forward and backward pass.
        exchange: Adding gradients up, or fetching variables and sending gradients, as far as the step waits
            for it.
        wait: Waiting for tasks that have not come to the exchange; None where that is part of the exchange.
        rest: The remainder of a step: the update of the variables, and the calls of the graph.
        derived: The names of the parts that were found by difference from another run.
    """

    input: float
    compute: float
    exchange: float
    wait: float | None
    rest: float
    derived: frozenset[str] = frozenset()

    @property
    def step(self) -> float:
        """Return the whole step."""
        return self.input + self.compute + self.exchange + (self.wait or 0.0) + self.rest

    def share(self, name: str) -> float:
        """Return the share of a step that a part takes."""
        return (getattr(self, name) or 0.0) / self.step

    @property
    def largest(self) -> str:
        """Return the name of the part that takes most of a step."""
        return max(NAMES, key=self.share)


def parts_of(sample: Sample, alone: Sample | None = None) -> Parts:
    """Return the parts of a step, averaged over the tasks that compute.

    Args:
        sample: The measurements.
        alone: The measurements of one process with one worker's part of the batch and of the machine.
    """
    if sample.records[0].exchange in ("ring", "none"):
        return _mean([_measured(record) for record in sample.records])
    return _by_difference(sample, None if alone is None else parts_of(alone))


def _measured(record: Record) -> Parts:
    # The ring's time for the agreement on whether all have data is part of the time for the data.
    data = max(0.0, record.asked - record.agreeing)
    # A step takes only that part of the exchange in which it computes nothing.
    moving = max(0.0, record.moving - record.hidden)
    waiting = max(0.0, record.waiting - max(0.0, record.hidden - record.moving))
    around = record.step - data - moving - waiting
    known = record.computing.get(record.task)
    compute = around if known is None else min(known, around)
    derived = frozenset(["compute"] if known is None else [])
    return Parts(data, compute, moving, waiting, max(0.0, around - compute), derived)


def _mean(parts: list[Parts]) -> Parts:
    values = {name: statistics.fmean(getattr(part, name) for part in parts) for name in NAMES}
    return Parts(**values, derived=parts[0].derived)


def _by_difference(sample: Sample, alone: Parts | None) -> Parts:
    exchange = sample.records[0].exchange
    asked = statistics.fmean(record.asked for record in sample.records)
    step = sample.step
    derived = {"exchange", "rest"}
    rest = 0.0 if alone is None else alone.rest
    known = list(sample.records[0].computing.values())
    compute = statistics.fmean(known) if known else 0.0
    if exchange == "servers" or not known:
        # A worker fetches variables while it computes, so its own clock does not separate the two.
        compute = compute if alone is None else alone.compute
        derived.add("compute")
    data = asked
    if exchange == "collectives" and alone is not None:
        # All workers agree on whether there are data, so each has also waited for the others.
        data = min(asked, alone.input)
        derived.add("input")
    data, compute = min(data, step), min(compute, max(0.0, step - data))
    rest = min(rest, max(0.0, step - data - compute))
    return Parts(data, compute, max(0.0, step - data - compute - rest), None, rest, frozenset(derived))
