"""Simulate events in order of time: a clock, links that carry one message after another, and cores."""

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """A clock that runs actions at their times."""

    def __init__(self) -> None:
        self.reached = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._number = itertools.count()  # actions with the same time run in the order they came

    def at(self, time: float, action: Action) -> None:
        """Schedule an action at a time."""
        heapq.heappush(self._events, (time, next(self._number), action))

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an action some seconds from now."""
        self.at(self.reached + seconds, action)

    def run(self) -> None:
        """Run all actions in order of time, until none is left."""
        while self._events:
            self.reached, _, action = heapq.heappop(self._events)
            action()


class Queue:
    """A queue that serves one request after another: one direction of a link, or a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.free_at = 0.0

    def take(self, seconds: float) -> float:
        """Queue for some seconds of service; return the time at which it begins."""
        begin = max(self.free_at, self._clock.reached)
        self.free_at = begin + seconds
        return begin

    def serve(self, seconds: float, then: Action) -> None:
        """Queue for some seconds of service, and run an action after it."""
        self._clock.at(self.take(seconds) + seconds, then)


def send(clock: Clock, sender: Queue, receiver: Queue, seconds: float, latency: float, then: Action) -> None:
    """Send a message over two links with queues; the second link passes its bytes on as they arrive."""
    clock.at(sender.take(seconds) + latency, lambda: receiver.serve(seconds, then))


class Core:
    """A processor core, which its computations share equally."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[int, float] = {}
        self._then: dict[int, Action] = {}
        self._number = itertools.count()
        self._since = 0.0
        self._plan = 0  # the number of the latest plan: earlier ones are void

    def compute(self, seconds: float, then: Action) -> None:
        """Compute for some seconds of the core, and run an action after it."""
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
        if plan != self._plan:  # a computation has started or ended since
            return
        self._advance()
        del self._left[number]
        then = self._then.pop(number)
        self._replan()
        then()
