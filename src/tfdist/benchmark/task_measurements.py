"""The measurements of a run, as its tasks write them."""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

# ring: tfdist's, which measures its own times. collectives: TensorFlow's, between workers. devices: between
# the devices of one process. servers: with parameter servers. none: no exchange.
Exchange = Literal["ring", "collectives", "devices", "servers", "none"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has measured for one of its steps; times are in seconds.

    Attributes:
        task: The task; in a cluster with ps tasks, the chief writes one record for all workers.
        strategy: The strategy.
        exchange: How gradients are exchanged.
        examples_per_second: Of all workers together.
        step: From one step of a worker to its next.
        asked: The wait for the next batch, and for the agreement that all workers have one.
        computing: By task, the forward and backward pass; as measured by the chief, or empty if unknown.
        moving: The time in which the ring moves or adds bytes.
        waiting: The time in which the ring waits for a task that has not come.
        hidden: The part of `moving` and `waiting` while the task still computed.
        agreeing: The part of `moving` and `waiting` that is within `asked`.
        processors: By task, for this task and those that serve it: processor seconds; empty if unknown.
        sent: By task, for the same tasks: bytes sent. Tasks whose kernels do not report them are missing.
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
    hidden: float = 0.0
    agreeing: float = 0.0
    processors: dict[str, float]
    sent: dict[str, float]
    parameters: int
    versions: dict[str, str]


class Sample(msgspec.Struct, frozen=True):
    """What the tasks of one run have measured.

    Attributes:
        records: One record per task that computes, or one of the chief in a cluster with ps tasks.
        outside: How many cores other programs kept busy; None if that is unknown.
    """

    records: Sequence[Record]
    outside: float | None = None

    @property
    def examples_per_second(self) -> float:
        """Return the examples per second of all workers together."""
        return statistics.fmean(record.examples_per_second for record in self.records)

    @property
    def step(self) -> float:
        """Return the seconds from one step of a worker to its next."""
        return statistics.fmean(record.step for record in self.records)

    @property
    def processors(self) -> float:
        """Return the processor seconds of a step, of all tasks together."""
        return sum(sum(record.processors.values()) for record in self.records)

    @property
    def sent(self) -> float:
        """Return the bytes sent in a step, by all tasks together."""
        return sum(sum(record.sent.values()) for record in self.records)
