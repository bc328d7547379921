"""Measure the links between the hosts of the tasks that have met, one after the other, led by one task."""

import itertools
import time
from collections.abc import Mapping
from typing import NamedTuple

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.diagnostics.doctor.answering import Answering
from tfdist.diagnostics.doctor.meeting import Meeting, call_task, round_trips
from tfdist.diagnostics.doctor.messages import (
    MOST_BULK,
    Bulk,
    End,
    Facts,
    Link,
    LinkError,
    Measure,
    Measured,
    Received,
)
from tfdist.transport.listen_and_call import ConnectError

__all__ = ["Links", "measure_links", "measure_to"]

_FIRST_BULK = 1 << 20
_LONG_ENOUGH = 0.3  # seconds, after which a measurement is good enough
_SECONDS_FOR_A_PAIR = 60.0

Links = Mapping[tuple[Task, Task], Measured]


class _Caller(NamedTuple):
    """What a task needs to call the others."""

    cluster: ClusterConfig
    secret: bytes | None
    facts: Facts

    def call(self, other: Task) -> Link:
        """Return a connection to the doctor of another task."""
        return call_task(self.cluster, other, self.secret, self.facts)[0]


def measure_to(cluster: ClusterConfig, other: Task, secret: bytes | None, facts: Facts) -> Measured:
    """Measure the link from this task to another one, or return why that fails."""
    try:
        with _Caller(cluster, secret, facts).call(other) as link:
            return _measured(link)
    except (ConnectError, LinkError) as error:
        return Measured(problem=str(error)[:300])


def _measured(link: Link) -> Measured:
    """Send more and more bytes, until sending them takes long enough."""
    round_trip, _ = round_trips(link)
    count = _FIRST_BULK
    while True:
        began = time.perf_counter()
        link.send(Bulk(count))
        link.send_bulk(count)
        link.receive(Received)
        seconds = time.perf_counter() - began
        if seconds >= _LONG_ENOUGH or 2 * count > MOST_BULK:
            return Measured(count / max(seconds - round_trip, 1e-6), round_trip)
        count *= 2


def measure_links(
    cluster: ClusterConfig,
    task: Task,
    meeting: Meeting,
    answering: Answering,
    secret: bytes | None,
    facts: Facts,
) -> Links:
    """Measure all links, if this task is the lead; otherwise wait until the lead has done it.

    Only tasks that were met, and that measure too, take part. The pairs come in turns, so that none disturbs
    another.

    Returns:
        What was measured, by the tasks at both ends; nothing for a task that is not the lead.
    """
    members = [other for other, met in meeting.met.items() if met.facts.measures]
    pairs = list(itertools.permutations([task, *members], 2))
    if task != cluster.lead:
        if cluster.lead in members:
            answering.ended.wait(_SECONDS_FOR_A_PAIR * max(1, len(pairs)))
        return {}
    caller = _Caller(cluster, secret, facts)
    results = {}
    for first, second in pairs:
        if first == task:
            results[first, second] = measure_to(cluster, second, secret, facts)
        else:
            results[first, second] = _asked(caller, first, second)
    for member in members:
        _end(caller, member)
    return results


def _asked(caller: _Caller, first: Task, second: Task) -> Measured:
    """Ask a task to measure its link to another one."""
    try:
        with caller.call(first) as link:
            link.send(Measure(str(second)))
            return link.receive(Measured, seconds=_SECONDS_FOR_A_PAIR)
    except (ConnectError, LinkError) as error:
        return Measured(problem=str(error)[:300])


def _end(caller: _Caller, member: Task) -> None:
    """Tell a task that all is measured; one that is gone needs not to know."""
    try:
        with caller.call(member) as link:
            link.send(End())
            link.receive(Received)
    except (ConnectError, LinkError):
        return
