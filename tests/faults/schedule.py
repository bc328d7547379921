"""Draw faults from a seed, and inflict each at a moment that is seen, not slept for."""

import os
import random
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from setups import Setup
from training import TORN, Training

__all__ = ["Fault", "Hit", "draw", "endure"]

_LONGEST_PAUSE = 0.1
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
        number: By which signal.
        pause: How many seconds after the moment was seen.
        tears: Whether the newest checkpoint is torn besides.
    """

    victim: str
    moment: str
    number: signal.Signals = signal.SIGKILL
    pause: float = 0.0
    tears: bool = False

    @property
    def kind(self) -> str:
        """Return what happens, whoever the victim is: the signal, and when it comes."""
        if self.number != signal.SIGKILL:
            return self.number.name
        return f"{self.number.name} {_WHEN[self.moment]}{', newest checkpoint torn' if self.tears else ''}"

    def __str__(self) -> str:
        torn = ", its checkpoint torn" if self.tears else ""
        return f"{self.number.name} to {self.victim} at {self.moment} + {1000 * self.pause:.0f} ms{torn}"


class Hit(NamedTuple):
    """Record what a fault did to a run.

    Attributes:
        fault: Which one.
        is_alone: Whether the victim came back alone. Else nobody could write any more.
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
    def steps_lost(self) -> int:
        """Return how many steps were done again."""
        return 0 if self.is_alone else max(0, self.reached - self.safe)


def draw(seed: int, setup: Setup, moments: Sequence[str]) -> list[Fault]:
    """Draw a fault for each moment.

    All victims come before one comes again, except at three moments of a step, whose victims are independent:
    `torn`, with a tear, at which the whole cluster is started again; `notice`, at which SIGTERM comes to one
    that saves; and `silence`, at which a task is stopped.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    order: list[str] = []
    for moment in moments:
        of_step = Fault("", "step", pause=chance.uniform(0, _LONGEST_PAUSE))
        if moment == "torn":
            faults.append(of_step._replace(victim=chance.choice(setup.savers), tears=True))
        elif moment == "notice":
            faults.append(of_step._replace(victim=chance.choice(setup.savers), number=signal.SIGTERM))
        elif moment == "silence":
            watched = [each for each in setup.victims if not each.startswith(("launcher", "evaluator"))]
            faults.append(of_step._replace(victim=chance.choice(watched), number=signal.SIGSTOP))
        else:
            order = order or chance.sample(setup.victims, len(setup.victims))
            # What is seen of a moment that is short is over after a pause.
            pause = of_step.pause if moment in ("start", "step") else 0.0
            faults.append(Fault(order.pop(), moment, pause=pause))
    return faults


def endure(
    training: Training, setup: Setup, faults: Sequence[Fault], hits: list[Hit] | None = None
) -> list[Hit]:
    """Inflict each fault at its moment, type the command again where it has ended, and see that it ends well.

    A cluster's launcher starts lost tasks again; where the command itself was hit, it is started again here.
    The faults are added to `hits`, so that a caller has those that came before an error.
    """
    hits = [] if hits is None else hits
    training.start()
    for fault, following in zip(faults, [*faults[1:], None], strict=True):
        _Life(training).wait_for(fault)
        time.sleep(fault.pause)
        before, begun = training.tasks(), time.monotonic()
        os.kill(before[fault.victim], fault.number)
        is_over = fault.victim == "launcher"
        is_alone = not is_over and fault.victim in setup.alone
        if is_over:
            _see_end(training, fault)
        else:
            lost = {before[fault.victim]} if is_alone else set(before.values()) - {before["launcher"]}
            training.until(lambda lost=lost: lost.isdisjoint(training.alive()), f"{lost} end after {fault}")
        if fault.tears:
            _tear(training)
        safe, reached, starts = training.newest(), training.reached(), len(training.history())
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


def _see_end(training: Training, fault: Fault) -> None:
    """See that a command ends as promised: 138 says that all is saved, and that it is to be typed again."""
    is_killed = fault.victim == "launcher" and fault.number == signal.SIGKILL
    status = training.end()
    assert status == (-signal.SIGKILL if is_killed else 138), f"{status} after {fault}: {training.tail()}"


def _tear(training: Training) -> None:
    """Cut the newest checkpoint short, as a disk may that loses power; the one before is whole."""
    torn = training.run / "checkpoints" / str(training.newest())
    [data] = torn.glob("variables.data-*")
    os.truncate(data, data.stat().st_size // 2)
    (torn / TORN).touch()


class _Life:
    """Record the state of a run when its tasks were started, and recognise by it what is new."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._newest = training.newest()
        self._starts = len(training.history())
        self._stale = training.partial("checkpoints") | training.partial("export")

    def wait_for(self, fault: Fault) -> None:
        """Wait until its moment has come."""
        training = self._training

        def has_come() -> bool:
            assert training.status() is None, f"ended before {fault}: {training.tail()}"
            return self._has_come(fault.moment) and fault.victim in training.tasks()

        training.until(has_come, f"{fault}, begun at {self._newest}")

    def _has_come(self, moment: str) -> bool:
        training = self._training
        if moment == "start":
            return True
        if moment == "step":
            return training.newest() > self._newest
        if moment == "checkpoint":
            return bool(training.partial("checkpoints") - self._stale)
        if moment == "last":
            is_begun = self._newest < training.total or len(training.history()) > self._starts
            return is_begun and training.newest() == training.total
        return bool(training.partial("export") - self._stale)
