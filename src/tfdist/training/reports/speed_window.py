"""Compute the speed that a run reports: that of its last seconds of training."""

import time
from collections import deque

SECONDS_BETWEEN_REPORTS = 0.5
_WINDOW_SECONDS = 10.0


class SpeedWindow:
    """The examples that were done at moments of the last seconds."""

    def __init__(self, second: float, examples: float) -> None:
        self._moments = deque([(second, examples)])

    @property
    def examples(self) -> float:
        """Return the examples that were done at the last moment."""
        return self._moments[-1][1]

    def speed(self, second: float, examples: float) -> float:
        """Add a moment; return the examples per second up to it.

        Asynchronous workers end their executions in bursts, which a single interval does not even out.
        """
        self._moments.append((second, examples))
        while len(self._moments) > 2 and second - self._moments[1][0] > _WINDOW_SECONDS:
            self._moments.popleft()
        began, before = self._moments[0]
        return (examples - before) / max(second - began, 1e-9)


class TrainingClock:
    """A clock of the seconds of training, which stands still while a run does something else."""

    def __init__(self) -> None:
        self._spent, self._resumed_at = 0.0, time.monotonic()
        self._is_training = True

    def set_training(self, now: bool) -> None:
        """Note whether the time that passes from now on belongs to the training."""
        self._spent, self._resumed_at = self.seconds(), time.monotonic()
        self._is_training = now

    def seconds(self) -> float:
        """Return the seconds of training so far."""
        return self._spent + (time.monotonic() - self._resumed_at if self._is_training else 0.0)
