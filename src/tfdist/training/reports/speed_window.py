"""Compute the speed that a run reports: that of its last seconds."""

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
