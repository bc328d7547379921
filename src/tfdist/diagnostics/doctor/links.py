"""Measure the links between the hosts of the tasks that have met, one after the other, led by one task."""

import contextlib
import itertools
import time
from collections.abc import Mapping

from tfdist.cluster.config import Task
from tfdist.diagnostics.doctor.answer_other_doctors import Answering
from tfdist.diagnostics.doctor.meeting import Meeting
from tfdist.diagnostics.doctor.protocol import (
    MOST_BULK,
    Bulk,
    End,
    Link,
    LinkError,
    Measure,
    Measured,
    Participant,
    Received,
    round_trips,
)
from tfdist.transport.listen_and_call import ConnectError

_FIRST_BULK = 1 << 20
_LONG_ENOUGH = 0.3  # seconds, after which a measurement is good enough
_SECONDS_FOR_A_PAIR = 60.0

Links = Mapping[tuple[Task, Task], Measured]


def measure_to(participant: Participant, other: Task) -> Measured:
    """Measure the link from this task to another one, or return why that fails."""
    try:
        with participant.call(other)[0] as link:
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


def measure_links(participant: Participant, meeting: Meeting, answering: Answering) -> Links:
    """Measure all links, if this task is the lead; otherwise wait until the lead has done it.

    Only tasks that were met, and that measure too, take part. The pairs come in turns, so that none disturbs
    another.

    Returns:
        What was measured, by the tasks at both ends; nothing for a task that is not the lead.
    """
    cluster, task = participant.cluster, participant.task
    members = [other for other, met in meeting.met.items() if met.facts.measures]
    pairs = list(itertools.permutations([task, *members], 2))
    if task != cluster.lead:
        if cluster.lead in members:
            answering.ended.wait(_SECONDS_FOR_A_PAIR * max(1, len(pairs)))
        return {}
    results = {}
    for first, second in pairs:
        if first == task:
            results[first, second] = measure_to(participant, second)
        else:
            results[first, second] = _asked(participant, first, second)
    for member in members:
        _end(participant, member)
    return results


def _asked(participant: Participant, first: Task, second: Task) -> Measured:
    """Ask a task to measure its link to another one."""
    try:
        with participant.call(first)[0] as link:
            link.send(Measure(str(second)))
            return link.receive(Measured, seconds=_SECONDS_FOR_A_PAIR)
    except (ConnectError, LinkError) as error:
        return Measured(problem=str(error)[:300])


def _end(participant: Participant, member: Task) -> None:
    """Tell a task that all is measured; one that is gone needs not to know."""
    with contextlib.suppress(ConnectError, LinkError), participant.call(member)[0] as link:
        link.send(End())
        link.receive(Received)
