"""An execution that another worker has begun continues after the steps that were applied."""

import threading

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.parameter_servers.applied_steps import AppliedSteps, Begun  # noqa: E402
from tfdist.training.runners.multi_step import Totals, make_execution  # noqa: E402


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr("tfdist.training.parameter_servers.applied_steps._SECONDS_TO_APPLY", 0.0)


@pytest.fixture
def counter():
    return tf.Variable(0, dtype=tf.int64)


def noting(counter, *, are_noted_by_update):
    return AppliedSteps(tf.distribute.get_strategy(), counter, are_noted_by_update=are_noted_by_update)


def execution(applied, counter):
    """Return the graph of an execution whose steps count, and note themselves if the update does it."""

    def step(batch, totals):
        with tf.control_dependencies(applied.refuse_if_given_up()):
            counter.assign_add(batch)
        if applied.are_noted_by_update:
            with tf.control_dependencies([counter.read_value()]):
                applied.note_step()
        return totals

    return tf.function(make_execution(step, applied=applied), autograph=False)


def run(execute, batches, steps, number, done=0):
    begun = Begun(tf.constant(number, tf.int64), tf.constant(done))
    iterator = iter(tf.data.Dataset.from_tensors(tf.constant(1, tf.int64)).repeat(batches))
    ran, _, _ = execute(iterator, tf.constant(steps), Totals((), tf.zeros([])), begun)
    return int(ran)


@pytest.mark.parametrize("are_noted_by_update", [True, False])
def test_another_worker_continues_after_the_steps_that_were_applied(counter, are_noted_by_update):
    applied = noting(counter, are_noted_by_update=are_noted_by_update)
    execute, number = execution(applied, counter), applied.new_number()
    # The data of the first worker end early, as if it had been lost after three steps.
    assert run(execute, 3, 10, number) == 3
    assert applied.give_up(number) == 3
    assert run(execute, 100, 10, applied.new_number(), done=3) == 10
    assert int(counter) == 10


def test_an_execution_that_was_lost_at_its_end_is_not_repeated(counter):
    applied = noting(counter, are_noted_by_update=True)
    execute, number = execution(applied, counter), applied.new_number()
    assert run(execute, 100, 5, number) == 5
    assert run(execute, 100, 5, applied.new_number(), done=applied.give_up(number)) == 5
    assert int(counter) == 5


@pytest.mark.parametrize("are_noted_by_update", [True, False])
def test_a_worker_that_continues_after_it_was_given_up_changes_nothing(counter, are_noted_by_update):
    applied = noting(counter, are_noted_by_update=are_noted_by_update)
    execute, lost, other = execution(applied, counter), applied.new_number(), applied.new_number()
    assert run(execute, 3, 10, lost) == 3
    assert applied.give_up(lost) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="given this execution to another worker"):
        run(execute, 100, 10, lost, done=3)
    assert int(counter) == 3
    assert run(execute, 100, 10, other, done=3) == 10
    assert int(counter) == 10


def test_a_second_worker_that_is_lost_at_once_has_applied_what_the_first_had(counter):
    applied = noting(counter, are_noted_by_update=True)
    assert applied.give_up(applied.new_number(), before=3) == 3


@pytest.mark.parametrize("ends", [True, False])
def test_an_update_that_has_begun_is_awaited(counter, monkeypatch, ends):
    """The server is slow between the look at what was given up, and the note; or the worker's loss ends it."""
    monkeypatch.setattr(
        "tfdist.training.parameter_servers.applied_steps._MOST_SECONDS_TO_APPLY", 60.0 if ends else 0.3
    )
    applied = noting(counter, are_noted_by_update=True)
    execute, number = execution(applied, counter), applied.new_number()
    assert run(execute, 2, 10, number) == 2
    step = applied._traced(tf.constant(number, tf.int64), tf.constant(3))
    applied._write(applied._begun, step)
    slow = threading.Timer(0.5, applied._write, (applied._rows, step))
    if ends:
        slow.start()
    assert applied.give_up(number) == (3 if ends else 2)
    if ends:
        slow.join()


def test_executions_do_not_see_each_others_steps(counter):
    applied = noting(counter, are_noted_by_update=False)
    execute = execution(applied, counter)
    numbers = [applied.new_number() for _ in range(3)]
    for number, steps in zip(numbers, (4, 0, 2), strict=True):
        run(execute, steps, 10, number)
    assert [applied.give_up(number) for number in numbers] == [4, 0, 2]


@pytest.mark.parametrize("are_noted_by_update", [True, False])
def test_what_a_lost_worker_has_applied_is_known_however_many_executions_come_after(
    counter, are_noted_by_update, monkeypatch
):
    monkeypatch.setattr("tfdist.training.parameter_servers.applied_steps._ROWS", 3)
    applied = noting(counter, are_noted_by_update=are_noted_by_update)
    execute, lost = execution(applied, counter), applied.new_number()
    assert run(execute, 3, 10, lost) == 3
    for _ in range(5):
        number = applied.new_number()
        run(execute, 2, 10, number)
        applied.release(number)
    assert applied.give_up(lost) == 3


def test_a_worker_that_was_lost_long_ago_changes_nothing_of_a_later_execution(counter, monkeypatch):
    monkeypatch.setattr("tfdist.training.parameter_servers.applied_steps._ROWS", 1)
    applied = noting(counter, are_noted_by_update=True)
    execute, numbers = execution(applied, counter), []
    for _ in range(2):  # two lost workers, one after the other
        numbers.append(applied.new_number())
        assert run(execute, 2, 10, numbers[-1]) == 2
        assert applied.give_up(numbers[-1]) == 2
        applied.release(numbers[-1])
    running = applied.new_number()
    assert run(execute, 1, 10, running) == 1
    for number in numbers:
        with pytest.raises(tf.errors.InvalidArgumentError, match="given this execution to another worker"):
            run(execute, 5, 10, number)
    assert int(counter) == 5
    assert applied.give_up(running) == 1


def test_the_optimizers_count_is_made_right_only_after_a_worker_was_lost(counter):
    applied = noting(counter, are_noted_by_update=True)
    counter.assign(7)
    applied.correct(5)
    assert applied.counted() == 7
    applied.give_up(applied.new_number())  # which is asked only after a worker was lost
    applied.correct(5)
    assert applied.counted() == 5
    counter.assign(6)
    applied.correct(5)
    assert applied.counted() == 6


def test_steps_that_the_loop_notes_leave_the_count_alone(counter):
    applied = noting(counter, are_noted_by_update=False)
    applied.give_up(applied.new_number())
    counter.assign(7)
    applied.correct(5)
    assert int(counter) == 7
