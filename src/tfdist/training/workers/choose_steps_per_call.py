"""Choose how many steps one call of the graph takes."""

import time

_SECONDS_OF_A_CALL = 0.5
_SECONDS_TO_MEASURE = 0.25
_MOST = 1000
_LEAST_CHANGE = 1.5


class StepsPerCall:
    """The steps that the next call takes: a fixed number, or as many as take about half a second.

    Each call costs a millisecond or more besides its steps, and an asynchronous worker waits for the chief
    between two calls. Between two calls, a run notices that it has to end, and reports its progress.

    Attributes:
        number: The steps that the next call takes.
        wanted: The steps that calls should take; workers in step change the number together.
        is_fixed: Whether the number is fixed.
    """

    def __init__(self, fixed: int | None, *, most: int = _MOST, workers: int = 1) -> None:
        """Begin with one step, or with the fixed number; None chooses up to `most`, for so many workers."""
        self.number = self.wanted = fixed or 1
        self.is_fixed = fixed is not None
        self._most, self._workers = max(1, min(most, _MOST)), workers
        self.pause()

    def pause(self) -> None:
        """Measure nothing until the next call has ended: something else, such as an evaluation, runs now."""
        self._steps, self._began = 0, 0.0

    def after_call(self, steps: int) -> None:
        """Measure a call of so many steps, which has ended."""
        now = time.monotonic()
        if self.is_fixed or not self._began:  # the first call may have traced the graph, or opened the data
            self._began = now
            return
        self._steps += steps
        seconds = now - self._began
        if seconds < _SECONDS_TO_MEASURE:
            return
        wanted = int(_SECONDS_OF_A_CALL * self._steps / seconds / self._workers)
        self._steps, self._began = 0, now
        wanted = max(1, min(wanted, self._most))
        if not 1 / _LEAST_CHANGE < wanted / self.wanted < _LEAST_CHANGE:
            self.wanted = wanted
