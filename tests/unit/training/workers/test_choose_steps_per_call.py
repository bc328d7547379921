"""How many steps a call of the graph takes, if nobody has said it."""

import pytest

from tfdist.training.workers import choose_steps_per_call
from tfdist.training.workers.choose_steps_per_call import StepsPerCall


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(choose_steps_per_call.time, "monotonic", lambda: now[0])
    return now


def called(calls, clock, seconds_of_a_call, count):
    """Make calls that take so long, and return the steps of each."""
    steps = []
    for _ in range(count):
        steps.append(calls.number)
        clock[0] += seconds_of_a_call(calls.number)
        calls.after_call(calls.number)
        calls.number = calls.wanted
    return steps


def test_a_call_takes_about_half_a_second(clock):
    calls = StepsPerCall(None)

    steps = called(calls, clock, lambda steps: 0.002 + 0.001 * steps, 200)

    assert steps[0] == 1
    assert 0.4 < 0.002 + 0.001 * steps[-1] < 0.6
    assert len(set(steps[-20:])) == 1  # it does not change all the time


def test_long_steps_are_called_one_by_one_also_if_they_become_long(clock):
    calls = StepsPerCall(None)

    assert set(called(calls, clock, lambda steps: 0.6 * steps, 10)) == {1}
    assert called(calls, clock, lambda steps: 0.002 * steps, 400)[-1] > 50
    assert called(calls, clock, lambda steps: 0.6 * steps, 4)[-1] == 1


def test_workers_at_their_own_pace_share_the_time(clock):
    one, four = (
        called(StepsPerCall(None, workers=workers), clock, lambda steps: 0.001 * steps, 500)[-1]
        for workers in (1, 4)
    )
    assert one == pytest.approx(4 * four, rel=0.1)


def test_the_first_call_and_what_runs_between_calls_count_for_nothing(clock):
    calls = StepsPerCall(None)
    called(calls, clock, lambda steps: 30.0, 1)  # traces the graph
    assert called(calls, clock, lambda steps: 0.002 * steps, 300)[-1] > 50
    steps = calls.number
    calls.pause()
    clock[0] += 60.0  # an evaluation
    called(calls, clock, lambda steps: 0.002 * steps, 10)
    assert calls.number == steps


def test_there_is_a_largest_number_and_a_fixed_one_stays(clock):
    def quick(steps):
        return 1e-6 * steps

    assert max(called(StepsPerCall(None, most=7), clock, lambda steps: 0.001 * steps, 300)) == 7
    assert called(StepsPerCall(None, most=0), clock, lambda steps: 0.001 * steps, 300)[-1] == 1
    assert set(called(StepsPerCall(3), clock, quick, 10)) == {3}
