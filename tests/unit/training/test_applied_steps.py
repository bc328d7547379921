"""An execution that another worker has begun continues after the steps that were applied."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist._utils.tf_private import read_when_sent_again  # noqa: E402
from tfdist.training.applied_steps import AppliedSteps, Begun  # noqa: E402
from tfdist.training.multi_step import Totals, make_execution  # noqa: E402


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr("tfdist.training.applied_steps._SECONDS_TO_APPLY", 0.0)


@pytest.fixture
def counter():
    return tf.Variable(0, dtype=tf.int64)


def sent_to(begun, worker):
    """Return what the worker gets to which the coordinator sends an execution."""
    return begun._replace(done=begun.done._values[worker])


def noting(counter, *, are_noted_by_update):
    return AppliedSteps(tf.distribute.get_strategy(), counter, are_noted_by_update=are_noted_by_update)


def execution(applied, counter):
    """Return the graph of an execution whose steps count, and note themselves if the update does it."""

    def step(batch, totals):
        counter.assign_add(batch)
        if applied.are_noted_by_update:
            with tf.control_dependencies([counter.read_value()]):
                applied.note_step()
        return totals

    return tf.function(make_execution(step, applied=applied), autograph=False)


def run(execute, batches, steps, begun):
    iterator = iter(tf.data.Dataset.from_tensors(tf.constant(1, tf.int64)).repeat(batches))
    ran, _, _ = execute(iterator, tf.constant(steps), Totals((), tf.zeros([])), begun)
    return int(ran)


@pytest.mark.parametrize("are_noted_by_update", [True, False])
def test_another_worker_continues_after_the_steps_that_were_applied(counter, are_noted_by_update):
    applied = noting(counter, are_noted_by_update=are_noted_by_update)
    execute, begun = execution(applied, counter), applied.begin()
    assert int(sent_to(begun, 0).done) == 0  # which the coordinator asks for to trace
    first = sent_to(begun, 1)
    # The data of the first worker end early, as if it had been lost after three steps.
    assert run(execute, 3, 10, first) == 3
    second = sent_to(begun, 0)
    assert int(second.done) == 3
    assert run(execute, 100, 10, second) == 10
    assert int(counter) == 10


def test_an_execution_that_was_lost_at_its_end_is_not_repeated(counter):
    applied = noting(counter, are_noted_by_update=True)
    execute, begun = execution(applied, counter), applied.begin()
    for worker in (0, 1):
        given = sent_to(begun, worker)
    assert run(execute, 100, 5, given) == 5
    assert run(execute, 100, 5, sent_to(begun, 0)) == 5
    assert int(counter) == 5


def test_executions_do_not_see_each_others_steps(counter):
    applied = noting(counter, are_noted_by_update=False)
    execute = execution(applied, counter)
    begun = [applied.begin() for _ in range(3)]
    for each, steps in zip(begun, (4, 0, 2), strict=True):
        run(execute, steps, 10, Begun(each.number, tf.constant(0)))
    for each, steps in zip(begun, (4, 0, 2), strict=True):
        assert [int(sent_to(each, 0).done) for _ in range(3)] == [0, 0, steps]


def test_a_row_that_a_later_execution_has_taken_is_not_believed(counter, monkeypatch):
    monkeypatch.setattr("tfdist.training.applied_steps._ROWS", 2)
    applied = noting(counter, are_noted_by_update=False)
    first, _, third = (applied.begin() for _ in range(3))
    applied.note(third.number, tf.constant(7))
    assert [int(sent_to(first, 0).done) for _ in range(3)] == [0, 0, 0]


def test_the_argument_is_read_from_the_second_worker_on():
    reads = []
    given = read_when_sent_again(tf.constant(0), lambda: reads.append(1) or tf.constant(len(reads)))
    assert [int(given._values[worker]) for worker in (0, 1, 0, 1)] == [0, 0, 1, 2]


def test_the_optimizers_count_is_made_right_only_after_a_worker_was_lost(counter):
    applied = noting(counter, are_noted_by_update=True)
    begun = applied.begin()
    counter.assign(7)
    applied.correct(5)
    assert applied.counted() == 7
    for worker in (0, 1, 0):  # the third time, the first worker was lost
        sent_to(begun, worker)
    applied.correct(5)
    assert applied.counted() == 5
    counter.assign(6)
    applied.correct(5)
    assert applied.counted() == 6


def test_steps_that_the_loop_notes_leave_the_count_alone(counter):
    applied = noting(counter, are_noted_by_update=False)
    begun = applied.begin()
    for worker in (0, 1, 0):
        sent_to(begun, worker)
    counter.assign(7)
    applied.correct(5)
    assert int(counter) == 7
