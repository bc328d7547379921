"""The speed that a run reports, the time and share of each task, and the warnings of stragglers."""

import logging

import numpy as np
import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.record_events import listening
from tfdist.launcher.run_events import Progressed, TaskSpeed
from tfdist.trainer import speed_and_stragglers
from tfdist.trainer.speed_and_stragglers import Stragglers, Throughput
from tfdist.training.reports.task_speed import record_task_speed


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(speed_and_stragglers.time, "monotonic", lambda: now[0])
    return now


def reported(clock, moments):
    """Return the speeds that are reported when steps are reached at these seconds."""
    events = []
    clock[0] = 100.0
    measured = Throughput(ClusterConfig(), batch_size=10, step=0, period=100)
    with listening(events.append):
        for second, step in moments:
            clock[0] = 100.0 + second
            measured.report(step, 1000)
    assert all(isinstance(event, Progressed) for event in events)
    return [event.examples_per_second for event in events]


def test_the_speed_is_that_of_the_last_seconds(clock):
    first, *steady = reported(clock, [(second, 2 * second) for second in range(1, 41)])
    assert first is None  # TensorFlow traces in it
    assert steady == pytest.approx([20.0] * 39)
    [*_, last] = reported(clock, [(20, 20), (31, 130), (42, 240)])
    assert last == pytest.approx(100.0)


def test_the_time_of_an_evaluation_or_a_checkpoint_is_left_out(clock):
    events = []
    measured = Throughput(ClusterConfig(), batch_size=10, step=0, period=100)
    with listening(events.append):
        for second, step, is_training in ((50, 1, True), (60, 11, False), (90, 11, True), (95, 16, True)):
            clock[0] = 100.0 + second
            if step > 11 or second < 90:
                measured.report(step, 1000)
            measured.clock.set_training(is_training)
    assert [event.examples_per_second for event in events] == [None, 10.0, 10.0]
    assert measured.since_last_asked(16) == pytest.approx(10.0)


def test_bursts_of_asynchronous_workers_are_evened_out(clock):
    moments = [
        (second + after, 10 * (2 * second + n)) for second in range(12) for n, after in ((1, 0.4), (2, 1.0))
    ]
    speeds = reported(clock, moments)
    assert max(speeds[4:]) < 1.2 * min(speeds[4:])


def test_a_report_is_made_twice_a_second_and_at_the_last_step(clock):
    assert len(reported(clock, [(0.1 * n, n) for n in range(1, 21)])) == 4
    assert len(reported(clock, [(0.1, 1000)])) == 1


def test_each_task_has_its_time_and_its_share_of_the_steps():
    events = []
    times = np.zeros((2, 5))
    times[:, 0], times[:, 1] = (3.0, 1.0), (30, 10)
    with listening(events.append):
        record_task_speed(ClusterConfig.local(workers=2), 40, times)
        record_task_speed(ClusterConfig(), 40, np.zeros((1, 5)))  # of no step
    [event] = events
    assert event == TaskSpeed(
        step=40,
        milliseconds={"worker:0": 100.0, "worker:1": 100.0},
        shares={"worker:0": 0.75, "worker:1": 0.25},
        time=event.time,
    )


def judged(caplog, stragglers, *milliseconds):
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tfdist"):
        stragglers.judge({f"worker:{index} at h:{index}": each for index, each in enumerate(milliseconds)})
    return [f"{record.levelname} {record.message}" for record in caplog.records]


def test_a_straggler_is_named_once_and_again_when_that_changes(caplog):
    stragglers = Stragglers()
    assert judged(caplog, stragglers, 80, 120, 85) == []
    assert judged(caplog, stragglers, 80, 210, 80) == [
        "WARNING worker:1 at h:1 takes 210 ms a step, 2.6 times the median of the others (80 ms)"
    ]
    assert judged(caplog, stragglers, 80, 500, 80) == []
    assert judged(caplog, stragglers, 80, 150, 80) == []  # between the two, it is what it was
    assert judged(caplog, stragglers, 80, 100, 80) == [
        "INFO worker:1 at h:1 keeps up again: 100 ms a step, the others 80"
    ]
    assert len(judged(caplog, stragglers, 80, 210, 80)) == 1


def test_of_two_each_is_compared_with_the_other(caplog):
    assert judged(caplog, Stragglers(), 0.5, 1.26) == [
        "WARNING worker:1 at h:1 takes 1.3 ms a step, 2.5 times the median of the others (0.5 ms)"
    ]


def test_one_alone_is_no_straggler(caplog):
    assert judged(caplog, Stragglers(), 80) == []
