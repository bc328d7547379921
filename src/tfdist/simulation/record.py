"""Note what happens in a simulation."""

from dataclasses import dataclass, field

__all__ = ["Record"]


@dataclass
class Record:
    """Hold when steps ended, and what they cost.

    Attributes:
        workers: How many workers there are.
        ends: When each step of any worker ended.
        staleness: How many updates of others each step's gradients are behind.
        computed: The seconds that each worker has computed.
        until: When each worker's last step ended.
        moved: The bytes that went over links.
    """

    workers: int
    ends: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    until: list[float] = field(default_factory=list)
    moved: float = 0.0

    def __post_init__(self) -> None:
        self.computed, self.until = [0.0] * self.workers, [0.0] * self.workers

    def step(self, worker: int, end: float, staleness: int) -> None:
        """Note a step of one worker."""
        self.ends.append(end)
        self.staleness.append(staleness)
        self.until[worker] = end
