"""Decide for how long a process may be doing one thing before it counts as stuck."""

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Literal

from tfdist.errors import ConfigError, shown

KEY = "stall_timeout"  # of the section `watch` in a config, and an argument of `tfdist.start`
StallTimeout = float | Literal["auto", "off"]

SHORTEST_SECONDS = 5.0  # that can be given
LEAST_SECONDS = 300.0  # with auto
_TIMES_THE_MEDIAN = 20
_TIMES_THE_LONGEST = 3
_STEPS_REMEMBERED = 101
# An activity may trace graphs, compile them, and fill buffers and caches when it is done for the first time.
# The steps tell nothing of one that is not part of each step, such as an evaluation by a callback.
_TIMES_IF_RARE_OR_FIRST = 10
# A stuck task ends itself after the limit. Those that wait for it must not end before, nor if the other task
# does two rare things in a row, such as a callback's evaluation and a checkpoint.
_TIMES_WHILE_WAITING = 2 * _TIMES_IF_RARE_OR_FIRST


def checked_timeout(where: str, timeout: StallTimeout) -> StallTimeout:
    """Return a timeout that a script gives; raise ConfigError if it is none."""
    if timeout in ("auto", "off"):
        return timeout
    if isinstance(timeout, (int, float)) and SHORTEST_SECONDS <= timeout < float("inf"):
        return timeout
    expected = f"auto, off, or a number of seconds from {SHORTEST_SECONDS:g}"
    raise ConfigError(where, expected=expected, received=shown(timeout))


@dataclass(frozen=True)
class Activity:
    """Something that a process does without a pause.

    Attributes:
        name: The words that follow "has been"; an empty string for what may last as long as it likes.
        kind: A step, whose usual time is the measure; an exchange of values with the other replicas, which
            take part in a step too; what else belongs to each step; or something rare.
    """

    name: str
    kind: Literal["step", "exchange", "at_each_step", "rare"] = "rare"


class StallLimit:
    """The seconds that an activity may last: given, or derived from what has lasted how long so far."""

    def __init__(self, timeout: float | Literal["auto"]) -> None:
        self._timeout = timeout
        self._steps: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._longest = 0.0
        self._known: set[str] = set()

    def note(self, activity: Activity, seconds: float) -> None:
        """Note that an activity has ended, and how long it has lasted."""
        if not activity.name:
            return
        self._known.add(activity.name)
        self._longest = max(self._longest, seconds)
        if activity.kind == "step":
            self._steps.append(seconds)

    def seconds(self, activity: Activity, *, is_first: bool = False, is_waiting: bool = False) -> float:
        """Return how long an activity may last.

        Args:
            activity: What the process is doing.
            is_first: Whether it counts as the first time.
            is_waiting: Whether it may be waiting for another task meanwhile.
        """
        limit = self._derived() if self._timeout == "auto" else self._timeout
        if is_waiting:
            return limit * _TIMES_WHILE_WAITING
        if is_first or activity.kind == "rare" or activity.name not in self._known:
            return limit * _TIMES_IF_RARE_OR_FIRST
        return limit

    def _derived(self) -> float:
        steps = list(self._steps)
        median = statistics.median(steps) if steps else 0.0
        return max(LEAST_SECONDS, _TIMES_THE_MEDIAN * median, _TIMES_THE_LONGEST * self._longest)
