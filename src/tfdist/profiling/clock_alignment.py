"""Find out by how much the clocks of the tasks differ, from exchanges that need all of their tasks.

No task has the sum of a ring before every task has come to it, and no message arrives before it is sent. So
each exchange bounds from both sides how far two clocks are apart, as a round trip does. The middle of all
bounds is wrong by half of their distance at most.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from tfdist._utils.profiler_span import EXCHANGE
from tfdist.profiling.read_recording import Recording, Span

_FOREVER = 1 << 62


@dataclass(frozen=True)
class Before:
    """Two times of which the first one was earlier, each by the clock of its task, in nanoseconds."""

    first: str
    first_at: int
    then: str
    then_at: int


@dataclass(frozen=True)
class Alignment:
    """What to add to the times of each task so that they can be compared.

    Attributes:
        shifts: Nanoseconds by task.
        errors: By how many nanoseconds each shift may be wrong; None where nothing tells, and the clocks are
            taken as they are.
        method: How the clocks were compared, in words.
    """

    shifts: Mapping[str, int]
    errors: Mapping[str, int | None]
    method: str

    @property
    def largest_error(self) -> int:
        """Return the largest error that is known."""
        return max((error for error in self.errors.values() if error is not None), default=0)


def align(recordings: Sequence[Recording], known: Sequence[Before] = ()) -> Alignment:
    """Return how to shift the times of tasks to the clock of the first one.

    Args:
        recordings: The recordings of the tasks.
        known: Pairs of times of which one is known to come first, such as those of a call to another task.
    """
    machines = {recording.task: recording.machine for recording in recordings}
    first = next(iter(machines), "")
    if len(set(machines.values())) <= 1:
        return Alignment(dict.fromkeys(machines, 0), dict.fromkeys(machines, 0), "one machine, one clock")
    bounds = _bounds(machines, [*known, *_exchanges(recordings)])
    shifts, errors = {machines[first]: 0}, {machines[first]: 0}
    while reached := [
        (error + errors[near], far, shifts[near] + shift)
        for (near, far), (shift, error) in bounds.items()
        if near in shifts and far not in shifts
    ]:
        error, far, shift = min(reached)
        shifts[far], errors[far] = shift, error
    return Alignment(
        {task: shifts.get(machine, 0) for task, machine in machines.items()},
        {task: errors.get(machine) for task, machine in machines.items()},
        _method(machines, set(shifts)),
    )


def _method(machines: Mapping[str, str], compared: set[str]) -> str:
    missing = [task for task, machine in machines.items() if machine not in compared]
    method = "exchanges between the tasks"
    return f"{method}; the clock of {', '.join(missing)} is taken as it is" if missing else method


def _bounds(machines: Mapping[str, str], known: Sequence[Before]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return for pairs of machines the shift of the second against the first, and its error."""
    # first_at + shift of first <= then_at + shift of then
    least: defaultdict[tuple[str, str], int] = defaultdict(lambda: -_FOREVER)
    for order in known:
        near, far = machines.get(order.first), machines.get(order.then)
        if near is not None and far is not None and near != far:
            least[near, far] = max(least[near, far], order.first_at - order.then_at)
    bounds = {}
    for near, far in list(least):
        if (far, near) in least:
            low, high = least[near, far], -least[far, near]
            bounds[near, far] = (low + high) // 2, abs(high - low) // 2
    return bounds


def _exchanges(recordings: Sequence[Recording]) -> Iterator[Before]:
    """Yield which times of exchanges are known to be earlier than others."""
    rounds: defaultdict[object, list[tuple[str, Span]]] = defaultdict(list)
    messages: defaultdict[object, list[tuple[str, Span]]] = defaultdict(list)
    for recording in recordings:
        for span in recording.named(EXCHANGE):
            if "round" in span.facts:
                rounds[span.facts["round"]].append((recording.task, span))
            elif "message" in span.facts:
                pair = frozenset((recording.task, span.facts["other"]))
                messages[span.facts["message"], span.facts["step"], pair].append((recording.task, span))
    for met in rounds.values():
        for (task, span), (other, others) in permutations(met, 2):
            yield Before(task, span.begin, other, others.end)
    for met in messages.values():
        for (task, span), (other, others) in permutations(met, 2):
            if span.facts["way"] == "sent" and others.facts["way"] == "received":
                yield Before(task, span.begin, other, others.end)
