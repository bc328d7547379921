"""Let things happen in the order of time: a clock, links that carry one thing after the other, and a core."""

import heapq
import itertools
from collections.abc import Callable

__all__ = ["Clock", "Core", "Line", "send"]

Action = Callable[[], None]


class Clock:
    """Make things happen when it is their time."""

    def __init__(self) -> None:
        self.reached = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._number = itertools.count()  # what is due at once happens in the order it was said

    def at(self, time: float, action: Action) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._events, (time, next(self._number), action))

    def after(self, seconds: float, action: Action) -> None:
        """Let something happen some time from now."""
        self.at(self.reached + seconds, action)

    def run(self) -> None:
        """Let everything happen, until nothing more is due."""
        while self._events:
            self.reached, _, action = heapq.heappop(self._events)
            action()


class Line:
    """Serve what comes one after the other, in the order of coming: a link's direction, or a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.free_at = 0.0

    def take(self, seconds: float) -> float:
        """Queue for some seconds' service; give when it begins."""
        begin = max(self.free_at, self._clock.reached)
        self.free_at = begin + seconds
        return begin

    def serve(self, seconds: float, then: Action) -> None:
        """Queue for some seconds' service, and go on after it."""
        self._clock.at(self.take(seconds) + seconds, then)


def send(clock: Clock, sender: Line, receiver: Line, seconds: float, latency: float, then: Action) -> None:
    """Send over two links, each of which may have others to serve; what arrives is passed on at once."""
    clock.at(sender.take(seconds) + latency, lambda: receiver.serve(seconds, then))


class Core:
    """Share a core out equally among all that compute on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[int, float] = {}
        self._then: dict[int, Action] = {}
        self._number = itertools.count()
        self._since = 0.0
        self._plan = 0  # which of the planned ends still holds

    def compute(self, seconds: float, then: Action) -> None:
        """Compute for some seconds of the core, and go on after it."""
        self._advance()
        number = next(self._number)
        self._left[number], self._then[number] = seconds, then
        self._replan()

    def _advance(self) -> None:
        for number in self._left:
            self._left[number] -= (self._clock.reached - self._since) / len(self._left)
        self._since = self._clock.reached

    def _replan(self) -> None:
        self._plan += 1
        if self._left:
            plan, number = self._plan, min(self._left, key=self._left.__getitem__)
            seconds = max(0.0, self._left[number]) * len(self._left)
            self._clock.after(seconds, lambda: self._end(number, plan))

    def _end(self, number: int, plan: int) -> None:
        if plan != self._plan:  # another has come or ended since
            return
        self._advance()
        del self._left[number]
        then = self._then.pop(number)
        self._replan()
        then()
