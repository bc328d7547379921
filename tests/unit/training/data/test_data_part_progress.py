"""What is taken of each part of the data is known, also of what a worker has read that is lost."""

import itertools
import threading
import types

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist._utils.tf_private import asked_when_sent  # noqa: E402
from tfdist.coordination.end_stalled_workers import WorkerExecutions  # noqa: E402
from tfdist.training.data.data_part_progress import NO_PART, PartsOfData  # noqa: E402
from tfdist.training.data.sent_execution import Execution  # noqa: E402


class Notes:
    """The steps that a parameter server has noted, by the number of the execution."""

    def __init__(self):
        self.steps, self.reads, self.numbers, self.held = {}, 0, itertools.count(1), set()

    def new_number(self):
        number = next(self.numbers)
        self.held.add(number)
        return number

    def release(self, number):
        self.held.remove(number)

    def give_up(self, number, before):
        self.reads += 1
        return self.steps.get(number, before)


@pytest.fixture
def notes():
    return Notes()


def scheduled(applied=None):
    closure = types.SimpleNamespace(_has_fetched_to_local=False)
    return Execution(10, applied, closure)


def answer(execution, ran):
    execution.closure._has_fetched_to_local = True
    execution.closure.fetch = lambda: (ran, None, 0.0)


def test_each_worker_reads_its_own_part_from_its_beginning():
    parts = PartsOfData(3, WorkerExecutions())
    assert [parts.for_iterator(worker) for worker in range(3)] == [(0, 0), (1, 0), (2, 0)]


def test_resumed_data_begin_after_what_is_taken():
    parts = PartsOfData(2, WorkerExecutions())
    parts.begin([4, 7])
    assert [parts.for_iterator(worker) for worker in range(2)] == [(0, 4), (1, 7)]
    parts.begin()
    assert parts.taken() == [0, 0]


def test_a_running_execution_has_taken_nothing_yet(notes):
    parts, execution = PartsOfData(2, WorkerExecutions()), scheduled(notes)
    notes.steps[1] = 6
    assert parts.for_execution(execution, 1) == (1, 0)
    assert parts.taken() == [0, 0]
    answer(execution, 10)
    assert parts.taken() == parts.taken() == [0, 10]
    assert not notes.reads


def test_the_number_of_an_execution_is_released_once_it_is_over(notes):
    parts, executions = PartsOfData(2, WorkerExecutions()), [scheduled(notes) for _ in range(4)]
    for worker in (0, 1):
        parts.for_execution(executions[worker], worker)
    assert notes.held == {1, 2}
    answer(executions[0], 10)
    parts.for_execution(executions[2], 0)
    assert notes.held == {2, 3}
    parts.for_execution(executions[1], 0)  # worker 1 is lost, and worker 0 has answered
    assert 2 not in notes.held
    for execution in executions[:3]:
        answer(execution, 10)
    parts.taken()
    assert not notes.held
    parts.for_execution(executions[3], 1)
    answer(executions[3], 10)
    parts.begin()
    assert not notes.held


def test_a_worker_that_returns_leaves_out_what_it_took_before_it_was_lost(notes):
    parts, first, second = PartsOfData(2, WorkerExecutions()), scheduled(notes), scheduled(notes)
    parts.for_execution(first, 1)
    answer(first, 10)
    parts.for_execution(second, 1)
    notes.steps[2] = 3
    assert parts.for_iterator(1) == parts.for_iterator(1) == (1, 13)
    assert parts.for_iterator(0) == (0, 0)
    # The coordinator sends the execution again, here to the same worker.
    assert parts.for_execution(second, 1) == (3, 3)
    answer(second, 10)
    assert parts.taken() == [0, 20]
    assert notes.reads == 1


def test_the_other_worker_reads_only_the_rest_of_an_execution(notes):
    parts, execution = PartsOfData(2, WorkerExecutions()), scheduled(notes)
    parts.for_execution(execution, 1)
    notes.steps[1] = 3
    assert parts.for_execution(execution, 0) == (2, 3)
    notes.steps[2] = 8  # by the other worker, which is lost too
    assert parts.for_iterator(1) == (1, 3)
    assert parts.for_execution(execution, 1) == (3, 8)
    answer(execution, 10)
    assert parts.taken() == [5, 5]
    assert (execution.worker, execution.sendings[-1].done_before) == (1, 8)


def test_what_updates_nothing_is_taken_again():
    parts, execution = PartsOfData(2, WorkerExecutions()), scheduled()
    parts.for_execution(execution, 1)
    assert parts.for_execution(execution, 0) == (0, 0)
    answer(execution, 10)
    assert parts.taken() == [10, 0]
    assert parts.for_iterator(1) == (1, 0)


def test_other_workers_read_what_lost_ones_leave(notes):
    parts, execution = PartsOfData(4, WorkerExecutions()), scheduled(notes)
    parts.for_execution(execution, 3)
    notes.steps[1] = 2
    for worker in (0, 1):
        parts.end(worker)
    assert parts.unfinished() == [2, 3]
    assert parts.hand_over({0, 1}) == [0, 1]
    assert [parts.for_iterator(worker) for worker in range(4)] == [(2, 0), (3, 2), (NO_PART, 0), (NO_PART, 0)]
    later = scheduled(notes)
    parts.for_execution(later, 1)
    answer(later, 10)
    assert parts.taken() == [0, 0, 0, 12]
    parts.end(1)
    assert parts.unfinished() == [2]
    assert parts.hand_over({1}) == [1]
    parts.begin()
    assert [parts.for_iterator(worker) for worker in range(4)] == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_more_parts_than_readers_are_handed_over_one_after_the_other():
    parts = PartsOfData(3, WorkerExecutions())
    parts.end(0)
    assert parts.hand_over({0}) == [0]
    assert parts.for_iterator(0) == (1, 0)
    parts.end(0)
    assert parts.hand_over({0}) == [0]
    assert parts.for_iterator(0) == (2, 0)
    parts.end(0)
    assert parts.unfinished() == []
    assert parts.hand_over({0}) == []


def test_if_the_notes_cannot_be_read_they_are_read_again(notes, monkeypatch):
    parts, execution = PartsOfData(2, WorkerExecutions()), scheduled(notes)
    parts.for_execution(execution, 1)
    notes.steps[1] = 3
    with monkeypatch.context() as broken:
        broken.setattr(Notes, "give_up", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            parts.for_iterator(1)
    assert parts.for_iterator(1) == (1, 3)


def test_workers_are_sent_executions_while_the_coordinator_waits_for_them():
    """As it does when it is given another execution after an error."""
    parts, first, second = PartsOfData(2, WorkerExecutions()), scheduled(), scheduled()
    first.closure = None

    def send(order):
        thread = threading.Thread(target=parts.for_execution, args=[second, 0], daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        order.is_traced = True
        threads.append(threading.Thread(target=lambda: order[1], daemon=True))
        threads[0].start()
        return types.SimpleNamespace(_has_fetched_to_local=False)

    threads = []
    parts.schedule(first, send, lambda: False)
    threads[0].join(30)
    assert [first.worker, second.worker] == [1, 0]


def test_an_execution_that_is_given_after_an_error_is_not_waited_for():
    """A worker's thread takes it at once, and the coordinator waits for this thread before it raises the error."""
    parts, execution, errors = PartsOfData(2, WorkerExecutions()), scheduled(), []
    execution.closure = None

    def ask(order):
        with pytest.raises(tf.errors.CancelledError, match="was not scheduled") as caught:
            order[1]
        errors.append(caught.value)

    def send(order):
        order.is_traced = True
        thread = threading.Thread(target=ask, args=[order], daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parts.schedule(execution, send, lambda: True)
    assert len(errors) == 1
    assert execution.sendings == []


def test_an_argument_is_asked_for_whenever_it_is_sent_and_not_to_trace():
    asked = []
    given = asked_when_sent(tf.constant(0), lambda worker: asked.append(worker) or tf.constant(worker))
    assert [int(given._values[worker]) for worker in (0, 1, 0, 1)] == [0, 1, 0, 1]
    assert asked == [1, 0, 1]
