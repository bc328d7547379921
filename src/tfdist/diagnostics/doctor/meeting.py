"""Meet the doctors of the other tasks: call each of them until it answers or the time is over."""

import queue
import threading
import time
from typing import NamedTuple

from tfdist.cluster.addresses_and_free_ports import join_address, split_address
from tfdist.cluster.config import Task
from tfdist.diagnostics.doctor.answer_other_doctors import Answering
from tfdist.diagnostics.doctor.look_up_and_connect import Reached, reach
from tfdist.diagnostics.doctor.protocol import Facts, Link, LinkError, Participant, round_trips
from tfdist.transport.listen_and_call import ConnectError

_MOST_THREADS = 32
_SECONDS_BETWEEN_CALLS = 0.5
_SECONDS_BETWEEN_LOOKS = 0.05


class Met(NamedTuple):
    """The result of a call to another task.

    Attributes:
        facts: What it says of its host.
        round_trip: Seconds of the fastest question and answer.
        ahead: Seconds by which its clock is ahead of this host's, within half a round trip.
        reaches_any_port: Whether a port that its system has chosen can be reached; None if it has none.
    """

    facts: Facts
    round_trip: float
    ahead: float
    reaches_any_port: bool | None


class Meeting:
    """The calls of this task to all others.

    Attributes:
        met: The tasks that have answered.
        failures: Of the other tasks, what came of the last connection.
        refusals: Of tasks that were once reached, why they are no doctor of this cluster's.
    """

    def __init__(self, participant: Participant) -> None:
        self._own = participant
        self.others = tuple(other for other in participant.cluster.tasks() if other != participant.task)
        self.met: dict[Task, Met] = {}
        self.failures: dict[Task, Reached] = {}
        self.refusals: dict[Task, str] = {}
        self._is_over = False

    def hold(self, answering: Answering, seconds: float) -> None:
        """Call the others until all were met and have called in their turn, or the time is over."""
        deadline = time.monotonic() + seconds
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for other in self.others:
            waiting.put(other)
        for _ in range(min(len(self.others), _MOST_THREADS)):
            threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
        everybody = set(self.others)
        while time.monotonic() < deadline:
            if everybody <= self.met.keys() and everybody <= answering.finished:
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._is_over = True

    def _work(self, waiting: "queue.SimpleQueue[Task]") -> None:
        while not self._is_over:
            try:
                other = waiting.get(timeout=_SECONDS_BETWEEN_CALLS)
            except queue.Empty:
                continue
            if not self._meet(other):
                time.sleep(_SECONDS_BETWEEN_CALLS)
                waiting.put(other)

    def _meet(self, other: Task) -> bool:
        """Call a task once; return whether it was met."""
        try:
            link, facts = self._own.call(other)
        except ConnectError as error:
            self._note(other, error)
            return False
        except LinkError as error:
            self.refusals[other] = f"breaks off: {error}"
            return False
        with link:
            if facts.cluster != self._own.facts.cluster:
                self.refusals[other] = "is a task of another cluster: the addresses in its config differ"
            elif facts.task != str(other):
                self.refusals[other] = f"answers as {facts.task}"
            else:
                return self._ask(other, link, facts)
        return False

    def _ask(self, other: Task, link: Link, facts: Facts) -> bool:
        try:
            round_trip, ahead = round_trips(link, self._own.clock)
        except LinkError as error:
            self.refusals[other] = f"breaks off: {error}"
            return False
        host, port = split_address(self._own.cluster.address(other))[0], facts.any_port
        is_reached = reach(join_address(host, port)).is_open if port else None
        self.met[other] = Met(facts, round_trip, ahead, is_reached)
        return True

    def _note(self, other: Task, error: ConnectError) -> None:
        cause = error.__cause__
        if "cannot be reached" in str(error) and isinstance(cause, OSError):
            self.failures[other] = Reached.by(cause)
        else:
            self.failures[other] = Reached(is_open=True)
            self.refusals[other] = str(error).partition(" ")[2]
