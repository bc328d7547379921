"""Hold what a run has measured, as its tasks have written it."""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = ["Exchange", "Record", "Sample"]

# By tfdist's ring, which knows its own times; by TensorFlow between workers, or between the devices of one
# process; with parameter servers; or not at all.
Exchange = Literal["ring", "collectives", "devices", "servers", "none"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what a task has measured of its own steps, for one step; times are seconds.

    Attributes:
        task: Which one; of a cluster with ps tasks, the chief speaks for the workers.
        strategy: The strategy.
        exchange: How gradients are exchanged.
        examples_per_second: Of all workers together.
        step: From one step of a worker to its next.
        asked: In which the step waits for the next batch, and for the others' to be there.
        computing: Of each task, forward and backward; as the chief sees it, or empty where nobody knows.
        moving: In which the ring moves, or adds up.
        waiting: In which it stands still because another task has not come.
        agreeing: Of these two, what is part of `asked`.
        processors: Of this task and of those that serve it, the processors' seconds.
        sent: Of the same, the bytes that they have sent; without those whose kernels do not tell.
        parameters: Bytes of the model's variables.
        versions: Of TensorFlow and others.
    """

    task: str
    strategy: str
    exchange: Exchange
    examples_per_second: float
    step: float
    asked: float
    computing: dict[str, float]
    moving: float = 0.0
    waiting: float = 0.0
    agreeing: float = 0.0
    processors: dict[str, float]
    sent: dict[str, float]
    parameters: int
    versions: dict[str, str]


class Sample(msgspec.Struct, frozen=True):
    """Hold what the tasks of one run have measured.

    Attributes:
        records: One of each task that computes, or of the chief beside ps tasks.
        outside: How many cores others have kept busy; None where that is not known.
    """

    records: Sequence[Record]
    outside: float | None = None

    @property
    def examples_per_second(self) -> float:
        """Give the examples of all workers together."""
        return statistics.fmean(each.examples_per_second for each in self.records)

    @property
    def step(self) -> float:
        """Give the seconds from one step of a worker to its next."""
        return statistics.fmean(each.step for each in self.records)

    @property
    def processors(self) -> float:
        """Give the processors' seconds of a step, of all tasks together."""
        return sum(sum(each.processors.values()) for each in self.records)

    @property
    def sent(self) -> float:
        """Give the bytes of a step, of all tasks together."""
        return sum(sum(each.sent.values()) for each in self.records)
