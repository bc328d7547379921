"""The chief ends a worker that is stuck in an execution, and none that is lost, idle or only slow."""

import types

import pytest

from tfdist.coordination import end_stalled_workers
from tfdist.coordination.end_stalled_workers import WorkerExecutions
from tfdist.training.data.data_part_progress import PartsOfData
from tfdist.training.data.sent_execution import Execution
from tfdist.training.runners import pending_executions
from tfdist.training.runners.pending_executions import ScheduledExecutions


class Chief:
    """A chief of two workers, whose clock a test moves."""

    def __init__(self):
        self.now, self.timeout, self.ended = 1000.0, 30.0, []
        executions = WorkerExecutions(lambda: self.now)
        self.parts = PartsOfData(2, executions)
        self.scheduled = ScheduledExecutions(None, executions)

    def schedule(self):
        closure = types.SimpleNamespace(_has_fetched_to_local=False, _error=None)
        self.scheduled.add(execution := Execution(1, closure=closure))
        return execution

    def send(self, worker, execution=None):
        """Send an execution to a worker, also one that another worker is lost with."""
        execution = execution or self.schedule()
        self.parts.for_execution(execution, worker)
        return execution

    def answer(self, execution):
        """Pass the result of an execution to the chief, which looks for it."""
        execution.closure._has_fetched_to_local = True
        execution.closure.fetch = lambda: ([0.0], [])
        execution.unpacked = lambda _: (1, None, 0.0)
        self.scheduled.fetch(execution)

    def wait(self, seconds):
        """Wait for answers for some seconds, in which none comes; return the workers that were ended."""
        self.ended.clear()
        for _ in range(int(seconds)):
            self.now += 1
            self.scheduled._end_stuck_workers()
        return list(self.ended)


@pytest.fixture
def chief(monkeypatch):
    chief = Chief()

    def end(task, where, seconds, limit):
        chief.ended.append((task.index, seconds, limit))

    monkeypatch.setattr(pending_executions, "end_stalled_worker", end)
    monkeypatch.setattr(pending_executions, "timeout_in_force", lambda: chief.timeout)
    monkeypatch.setattr(pending_executions, "named", lambda tasks, strategy: list(map(str, tasks)))
    return chief


@pytest.fixture
def two_at_work(chief):
    """Each of two workers has ended one execution, and begun another."""
    for worker in (0, 1):
        chief.answer(chief.send(worker))
    return chief, [chief.send(worker) for worker in (0, 1)]


def test_a_worker_that_does_not_end_its_execution_is_ended(two_at_work):
    chief, (execution, _) = two_at_work
    for _ in range(20):
        assert chief.wait(1) == []
        chief.answer(execution)
        execution = chief.send(0)
    assert chief.wait(10) == [(1, 30.0, 30.0)]
    assert chief.wait(20) == [(0, 30.0, 30.0)]  # worker 1 has been told to end 20 s ago
    assert chief.wait(10) == [(1, 30.0, 30.0)]
    chief.timeout = "off"
    assert chief.wait(1000) == []
    chief.timeout = 30.0
    chief.scheduled.clear()  # the epoch has ended
    assert chief.wait(1000) == []


def test_a_worker_that_was_stopped_with_the_whole_cluster_is_not_stuck(two_at_work):
    chief, (execution, _) = two_at_work
    assert chief.wait(10) == []
    chief.now += 10_000
    assert chief.wait(14) == []
    chief.answer(execution)
    chief.send(0)
    assert chief.wait(3) == [(1, 30.0, 30.0)]


def test_the_first_execution_of_a_worker_may_take_ten_times_as_long(chief):
    chief.send(0)
    assert chief.wait(299) == []
    assert chief.wait(1) == [(0, 300.0, 300.0)]


def test_an_execution_that_skips_data_may_take_ten_times_as_long(two_at_work):
    chief, (execution, other) = two_at_work
    chief.answer(other)
    chief.parts.for_iterator(1)  # of the one batch that it has read
    chief.answer(execution)
    other = chief.send(1)
    assert chief.wait(299) == []
    chief.answer(other)
    chief.send(1)
    assert chief.wait(30) == [(1, 30.0, 30.0)]


def test_the_limit_follows_from_how_long_executions_take(two_at_work):
    chief, executions = two_at_work
    chief.timeout = "auto"
    for _ in range(5):
        assert chief.wait(100) == []
        for execution in executions:
            chief.answer(execution)
        executions = [chief.send(worker) for worker in (0, 1)]
    assert chief.wait(1999) == []
    assert chief.wait(1) == [(0, 2000.0, 2000.0), (1, 2000.0, 2000.0)]


def test_a_worker_without_work_is_not_stuck_and_its_pause_counts_as_no_execution(two_at_work):
    chief, executions = two_at_work
    chief.timeout = "auto"
    chief.wait(1)
    for execution in executions:
        chief.answer(execution)
    assert chief.wait(10_000) == []
    chief.send(0)
    assert chief.wait(299) == []
    assert chief.wait(1) == [(0, 300.0, 300.0)]


def test_a_pause_of_the_chief_counts_as_no_execution(two_at_work):
    chief, executions = two_at_work
    chief.timeout = "auto"
    chief.wait(1)
    chief.now += 10_000  # in a callback; both workers answer soon
    for execution in executions:
        chief.answer(execution)
    chief.send(0)
    assert chief.wait(300) == [(0, 300.0, 300.0)]


def test_the_time_until_a_lost_worker_is_back_counts_as_no_execution(two_at_work):
    chief, (first, second) = two_at_work
    chief.timeout = "auto"
    chief.wait(1)
    chief.answer(first)
    first = chief.send(0, second)  # worker 1 is lost
    for _ in range(30):
        assert chief.wait(60) == []
        chief.answer(first)
        first = chief.send(0)
    chief.send(1)
    assert chief.wait(1199) == []
    assert chief.wait(1) == [(0, 1200.0, 1200.0), (1, 1200.0, 1200.0)]  # 20 times the median


def test_a_worker_whose_execution_another_one_has_got_is_not_stuck(two_at_work):
    chief, (first, second) = two_at_work
    chief.answer(first)
    chief.answer(chief.send(0, second))  # worker 1 is lost
    assert chief.wait(1000) == []
    third = chief.send(1)  # it is back
    assert chief.wait(1) == []
    chief.answer(third)
    assert chief.wait(1000) == []


def test_a_worker_that_comes_back_is_not_at_work_on_what_it_was_lost_with(two_at_work):
    chief, (first, _) = two_at_work
    chief.answer(first)
    chief.parts.for_iterator(1)
    assert chief.wait(1000) == []


def test_a_worker_that_does_not_answer_is_not_stuck(monkeypatch):
    told = []
    monkeypatch.setattr(end_stalled_workers, "call_each", lambda *_: told.append("to end"))
    monkeypatch.setattr(end_stalled_workers, "record", told.append)
    monkeypatch.setattr(end_stalled_workers, "answers", lambda address: None)
    end_stalled_workers.end_stalled_worker(None, "worker:1 at b:2", 30.0, 30.0)
    assert told == []
