"""Inflict faults on the link between two hosts, whose tasks were started by hand, and see that they recover."""

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harms import Harm
from hosts import Tasks
from schedule import Fault, Hit
from setups import SILENCE
from wire import Wire

__all__ = ["CUT", "draw", "endure"]

_LONGEST_PAUSE = 0.1
_FOUND = " has found the chief at "


@dataclass(frozen=True)
class Passing(Harm):
    """A link that is bad for a while: all tasks wait for it.

    Attributes:
        name: For tables.
        seconds: How long.
        delay: Seconds that a packet takes meanwhile.
        loss: The share of packets that do not come.
        is_cut: Whether none comes.
    """

    name: str
    seconds: float
    delay: float = 0.0
    loss: float = 0.0
    is_cut: bool = False
    loses = False

    def inflict_on(self, wire: Wire, tasks: Tasks) -> dict[str, int]:
        wire.delay, wire.loss, wire.is_cut = self.delay, self.loss, self.is_cut
        time.sleep(self.seconds)
        wire.delay, wire.loss, wire.is_cut = 0.0, 0.0, False
        return {}


class Cut(Harm):
    """A link that is cut until the tasks that cannot do without each other have ended."""

    name = "link cut"
    status = 138

    def inflict_on(self, wire: Wire, tasks: Tasks) -> dict[str, int]:
        wire.is_cut = True
        ended = tasks.ends(*tasks.alone or tasks)
        wire.is_cut = False
        return ended


CUT = Cut()
_HARMS = (
    Passing("slow link", 5.0, delay=0.3),
    Passing("link that loses packets", 5.0, loss=0.1),
    Passing("link cut for a moment", SILENCE / 3, is_cut=True),
    CUT,
)


def draw(seed: int, count: int) -> list[Fault]:
    """Draw so many faults of a link."""
    chance = random.Random(seed)
    return [
        Fault("link", "step", chance.choice(_HARMS), chance.uniform(0, _LONGEST_PAUSE)) for _ in range(count)
    ]


def endure(wire: Wire, tasks: Tasks, faults: Sequence[Fault], hits: list[Hit] | None = None) -> list[Hit]:
    """Inflict each fault in a step, start again the tasks that have ended for it, and see that all end well.

    The faults are added to `hits`, so that a caller has those that came before an error.
    """
    hits = [] if hits is None else hits
    lead = tasks.lead
    tasks.start()
    for fault in faults:
        tasks.reach(lead.newest() + 1)
        time.sleep(fault.pause)
        begun = time.monotonic()
        ended = fault.harm.inflict_on(wire, tasks)
        assert set(ended.values()) <= {fault.harm.status}, f"{ended} after {fault}: {tasks.told()}"
        safe, reached, starts = lead.newest(), lead.reached(), len(lead.history())
        if ended:
            _start_again(tasks, ended)
        tasks.reach(safe + 1)
        hits.append(Hit(fault, bool(ended and tasks.alone), safe, reached, starts, time.monotonic() - begun))
    ends = tasks.ends()
    assert set(ends.values()) == {0}, f"{ends}: {tasks.told()}"
    return hits


def _start_again(tasks: Tasks, names: Iterable[str]) -> None:
    """Start tasks, and wait until those have joined without which the others continue, and may end before."""
    before = {name: tasks[name].said().count(_FOUND) for name in tasks.alone}
    tasks.start(*names)
    for name, count in before.items():
        tasks[name].until(
            lambda task=tasks[name], count=count: task.said().count(_FOUND) > count,
            f"{name} has found the chief",
        )
