"""Clocks of machines that differ are aligned by exchanges, which no task leaves before all have come."""

import random

import pytest
from recorded import START, exchange, message, operation, recorded

from tfdist.profiling.clock_alignment import Before, align
from tfdist.profiling.read_recording import read_recording


def of_machine(task, events, *, ahead):
    """Return the recording of a task on its own machine, whose clock is ahead by some microseconds."""
    return read_recording(recorded(task, [events], machine=task, start=START + 1000 * ahead))


def test_tasks_of_one_machine_are_not_shifted():
    recordings = [read_recording(recorded(task, [[exchange(0, 9, 10)]])) for task in ("worker:0", "worker:1")]
    found = align(recordings)
    assert found.shifts == {"worker:0": 0, "worker:1": 0}
    assert found.method == "one machine, one clock"


def test_rounds_of_a_ring_tell_how_clocks_differ():
    # Each worker comes at its own time, and all leave a moment after the last one has come.
    rng, ahead = random.Random(5), {"worker:0": 0, "worker:1": 3_000, "worker:2": -70_000}
    events = {task: [] for task in ahead}
    for number in range(30):
        comes = {task: 1_000 * number + rng.randrange(1, 500) for task in ahead}
        for task, at in comes.items():
            events[task].append(exchange(number, at, max(comes.values()) + rng.randrange(5, 20)))
    found = align([of_machine(task, events[task], ahead=ahead[task]) for task in ahead])
    for task, microseconds in ahead.items():
        assert found.shifts[task] == pytest.approx(-1000 * microseconds, abs=1 + found.errors[task])
    assert 0 < found.largest_error < 100_000
    assert found.method == "exchanges between the tasks"


def test_messages_tell_how_the_clocks_of_servers_differ():
    worker = [message("down 0", "received", "ps:0", 10, 40), message("up 1", "sent", "ps:0", 60, 65)]
    server = [message("down 0", "sent", "worker:0", 20, 25), message("up 1", "received", "worker:0", 50, 75)]
    found = align([of_machine("worker:0", worker, ahead=0), of_machine("ps:0", server, ahead=500)])
    assert found.shifts["ps:0"] == pytest.approx(-500_000, abs=found.errors["ps:0"])
    assert found.errors["ps:0"] == 17_500  # between 20 - 40 and 75 - 60


def test_a_message_of_another_worker_tells_nothing():
    server = [message("down 0", "sent", "worker:1", 20, 25), message("up 1", "received", "worker:1", 50, 75)]
    worker = [message("down 0", "received", "ps:0", 10, 40), message("up 1", "sent", "ps:0", 60, 65)]
    found = align([of_machine("worker:0", worker, ahead=0), of_machine("ps:0", server, ahead=0)])
    assert found.errors == {"worker:0": 0, "ps:0": None}
    assert found.method == "exchanges between the tasks; the clock of ps:0 is taken as it is"


def test_calls_of_the_chief_tell_how_the_clocks_of_those_it_calls_differ():
    chief = of_machine("chief:0", [operation("Sum", 1, 2)], ahead=0)
    ps = of_machine("ps:0", [operation("Sum", 1, 2)], ahead=8_000)
    # A call of 100 us whose answer is the other's clock in its middle, and a slower one.
    known = []
    for begin, there, end in ((100, 8_150, 200), (300, 8_900, 1_200)):
        known += [Before("chief:0", 1000 * begin, "ps:0", 1000 * there)]
        known += [Before("ps:0", 1000 * there, "chief:0", 1000 * end)]
    found = align([chief, ps], known)
    assert found.shifts == {"chief:0": 0, "ps:0": -8_000_000}
    assert found.errors["ps:0"] == 50_000
