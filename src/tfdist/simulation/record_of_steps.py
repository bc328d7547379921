"""Record when simulated steps end, and what they cost."""

from dataclasses import dataclass, field


@dataclass
class Record:
    """The ends of steps, and their cost.

    Attributes:
        workers: The number of workers.
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
        """Record a step of one worker."""
        self.ends.append(end)
        self.staleness.append(staleness)
        self.until[worker] = end
