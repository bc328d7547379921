"""Draw faults from a seed, and inflict each at a moment that is seen, not slept for."""

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gates import BUILD, END, EXPORT_BEGINS, IN_CHECKPOINT, IN_EXPORT
from harms import DAMAGES, TORN_DATA, ClockSet, DiskFull, Harm, OutOfMemory, Signal
from setups import EVERY, Setup
from training import Training

__all__ = ["OF_A_STEP", "Fault", "Hit", "draw", "endure", "possible", "prepared"]

_LONGEST_PAUSE = 0.1
_AHEAD = 3 * EVERY // 2  # steps that a run may take beyond its newest checkpoint: enough for the next one
_WHEN = {
    "start": "at the start",
    "step": "in a step",
    "checkpoint": "while a checkpoint is written",
    "last": "after the last step",
    "export": "while the model is exported",
}


class Fault(NamedTuple):
    """Describe one fault.

    Attributes:
        victim: Who is hit: a task, or `launcher`, the command itself.
        moment: When: `start`, `step`, `checkpoint`, `last` (when all steps are done) or `export`.
        harm: What is done.
        pause: How many seconds after the moment was seen.
    """

    victim: str
    moment: str
    harm: Harm = Signal()
    pause: float = 0.0

    @property
    def kind(self) -> str:
        """Return what happens, whoever the victim is, and of SIGKILL alone when it comes."""
        return f"{self.harm.name} {_WHEN[self.moment]}" if self.harm == Signal() else self.harm.name

    def __str__(self) -> str:
        return f"{self.harm.name} to {self.victim} at {self.moment} + {1000 * self.pause:.0f} ms"


class Hit(NamedTuple):
    """Record what a fault did to a run.

    Attributes:
        fault: Which one.
        is_alone: Whether the victim came back alone. Else nobody could write any more, unless nobody was lost.
        safe: The newest whole checkpoint.
        reached: The step that the run had come to.
        starts: How often it had been begun.
        seconds: How long it took until a newer checkpoint was there, where the next fault came after that.
    """

    fault: Fault
    is_alone: bool
    safe: int
    reached: int
    starts: int
    seconds: float | None

    @property
    def continues(self) -> bool:
        """Return whether the run continued, and did not begin again."""
        return self.is_alone or not self.fault.harm.loses

    @property
    def steps_lost(self) -> int:
        """Return how many steps were done again."""
        return 0 if self.continues else max(0, self.reached - self.safe)


def _one_that_saves(chance: random.Random, setup: Setup) -> str:
    return chance.choice(setup.savers)


def _anyone(chance: random.Random, setup: Setup) -> str:
    return chance.choice(setup.victims)


def _one_that_is_watched(chance: random.Random, setup: Setup) -> str:
    return chance.choice([each for each in setup.victims if not each.startswith(("launcher", "evaluator"))])


def _command(chance: random.Random, setup: Setup) -> str:
    return "launcher"


_DAY = 86_400.0
# What each word for a fault in a step does, and to whom.
OF_A_STEP: Mapping[str, tuple[Callable[[random.Random, Setup], str], Sequence[Harm]]] = MappingProxyType(
    {
        "torn": (_one_that_saves, (TORN_DATA,)),
        "notice": (_one_that_saves, (Signal(signal.SIGTERM),)),
        "silence": (_one_that_is_watched, (Signal(signal.SIGSTOP),)),
        "damage": (_one_that_saves, DAMAGES),
        "memory": (_anyone, (OutOfMemory(),)),
        "disk": (_command, (DiskFull(),)),
        "clock": (_command, (ClockSet(_DAY), ClockSet(-_DAY))),
    }
)


def draw(seed: int, setup: Setup, moments: Sequence[str]) -> list[Fault]:
    """Draw a fault for each moment.

    All victims come before one comes again, except for the words of OF_A_STEP, whose victims are independent.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    order: list[str] = []
    for moment in moments:
        pause = chance.uniform(0, _LONGEST_PAUSE)
        if moment in OF_A_STEP:
            victim, harms = OF_A_STEP[moment]
            # In this order: a harm of several is drawn, and one alone takes no number of the seed's.
            harm = chance.choice(harms) if len(harms) > 1 else harms[0]
            faults.append(Fault(victim(chance, setup), "step", harm, pause))
        else:
            order = order or chance.sample(setup.victims, len(setup.victims))
            # What is seen of a moment that is short is over after a pause.
            faults.append(Fault(order.pop(), moment, pause=pause if moment in ("start", "step") else 0.0))
    return faults


def possible(moments: Sequence[str]) -> list[str]:
    """Return those of the moments at which a fault can be inflicted here, and say why it cannot at the others."""
    found = []
    for moment in moments:
        _, [harm, *_] = OF_A_STEP.get(moment, (None, [Signal()]))
        if why := harm.why_not():
            print(f"left out: {moment}: {why}", flush=True)
        else:
            found.append(moment)
    return found


@contextlib.contextmanager
def prepared(training: Training, faults: Sequence[Fault]) -> Iterator[None]:
    """Make what the faults need before a training starts, and remove it after its end."""
    with contextlib.ExitStack() as stack:
        for harm in {type(fault.harm): fault.harm for fault in faults}.values():
            stack.enter_context(harm.prepared(training))
        yield


def endure(
    training: Training, setup: Setup, faults: Sequence[Fault], hits: list[Hit] | None = None
) -> list[Hit]:
    """Inflict each fault at its moment, type the command again where it has ended, and see that it ends well.

    A cluster's launcher starts lost tasks again; where the command itself was hit, it is started again here.
    The faults are added to `hits`, so that a caller has those that came before an error.
    """
    hits = [] if hits is None else hits
    gates, stale = training.gates, set[str]()
    gates.close(EXPORT_BEGINS, END)
    gates.allow(_AHEAD)
    training.start()
    for fault, following in zip(faults, [*faults[1:], None], strict=True):
        _wait_for(training, setup, fault, stale)
        time.sleep(fault.pause)
        begun, is_alone = time.monotonic(), fault.victim in setup.alone
        is_over = fault.victim == "launcher" and fault.harm.loses
        _inflict(training, fault, is_over=is_over, is_alone=is_alone)
        if fault.harm.loses and not is_alone:
            stale = training.partial("checkpoints") | training.partial("export")
        reached = training.reached()
        fault.harm.settle(training)
        safe, starts = training.newest(), len(training.history())
        if following is None:
            gates.open(EXPORT_BEGINS, END)
            gates.allow()
        else:
            gates.close(EXPORT_BEGINS)
            gates.allow(safe + _AHEAD)
        gates.open(BUILD, IN_EXPORT)
        if is_over:
            training.start()
        seconds = None
        if safe < training.total and (following is None or following.moment != "start"):
            training.until(lambda safe=safe: training.newest() > safe, f"recovery from {fault}")
            seconds = time.monotonic() - begun
        hits.append(Hit(fault, is_alone, safe, reached, starts, seconds))
    status = training.end()
    assert status == 0, f"ended with {status}: {training.tail()}"
    return hits


def _inflict(training: Training, fault: Fault, *, is_over: bool, is_alone: bool) -> None:
    """Inflict a fault, and wait until all have ended that it ends; who is started again waits at BUILD."""
    before, gates = training.tasks(), training.gates
    gates.close(BUILD)
    fault.harm.inflict(training, before[fault.victim])
    gates.open(IN_CHECKPOINT)  # a task that ends waits for what it writes in the background
    if fault.harm.needs_steps:
        gates.allow()
    if is_over:
        status = training.end()
        assert status == fault.harm.status, f"{status} after {fault}: {training.tail()}"
    elif fault.harm.loses:
        lost = {before[fault.victim]} if is_alone else set(before.values()) - {before["launcher"]}
        training.until(lambda: lost.isdisjoint(training.alive()), f"{lost} end after {fault}")


def _wait_for(training: Training, setup: Setup, fault: Fault, stale: set[str]) -> None:
    """Wait until the moment of a fault has come, and hold the run there or a little later.

    Nobody writes the partial checkpoints and exports in `stale` any more.
    """
    moment, gates, newest = fault.moment, training.gates, training.newest()
    if moment == "checkpoint":
        gates.close(IN_CHECKPOINT)
    elif moment == "export":
        gates.close(IN_EXPORT)
        gates.open(EXPORT_BEGINS)
    if moment in ("last", "export"):
        gates.allow()

    def is_seen() -> bool:
        if moment == "start":
            return setup.tasks <= training.tasks().keys()
        if moment == "step":
            return training.newest() > newest
        if moment == "last":
            return training.newest() == training.total
        return bool(training.partial("checkpoints" if moment == "checkpoint" else "export") - stale)

    def has_come() -> bool:
        assert training.status() is None, f"ended before {fault}: {training.tail()}"
        if moment in ("step", "checkpoint"):
            gates.allow(training.newest() + _AHEAD)
        return is_seen() and fault.victim in training.tasks()

    training.until(has_come, f"{fault}, begun at {newest}")
