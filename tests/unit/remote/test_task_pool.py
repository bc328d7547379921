"""What the tasks of a cluster are taken for while they compute."""

import socket
import threading

import pytest
import tensorflow as tf

from tfdist.cluster.config import Task
from tfdist.errors import TaskLost
from tfdist.remote import task_pool
from tfdist.remote.task_pool import Pool

TASK = Task("worker", 0)


def test_a_task_is_gone_once_nobody_listens_though_its_call_has_not_failed():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # held, and not listened to: connections are refused
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        pool = Pool({Task("worker", 0): address}, 30.0, lambda tasks: None)
        released = threading.Event()
        try:
            with pytest.raises(TaskLost, match="no task is left: worker:0 is gone"):
                pool.share(1, lambda task, number: released.wait(), list(pool.tasks))
        finally:
            released.set()
            pool.close()


def test_an_answer_of_before_a_task_came_back_does_not_count():
    pool = Pool({TASK: "localhost:1"}, 30.0, lambda tasks: None)
    before, now = task_pool._Run(0), task_pool._Run(0)
    assert pool._newly_lost({TASK: now}, {TASK: before}, {TASK: False}) == []
    assert pool.tasks == (TASK,)
    assert pool._newly_lost({TASK: now}, {TASK: now}, {TASK: False}) == [TASK]
    pool.close()


class ReturningAtTheEnd(list):
    """Tasks one of which comes back while the pool gives up, since no task is left."""

    def __iter__(self):
        yield from super().__iter__()
        self.pool._lost.clear()


def test_a_task_that_comes_back_while_none_is_left_leaves_the_error_as_it_is():
    pool, tasks = Pool({TASK: "localhost:1"}, 30.0, lambda tasks: None), ReturningAtTheEnd([TASK])
    pool._lost[TASK], tasks.pool = "is gone", pool
    with pytest.raises(TaskLost, match="no task is left: worker:0 is gone"):
        pool.share(1, lambda task, number: number, tasks)
    assert pool.share(1, lambda task, number: number, tasks) == [0]


@pytest.mark.parametrize("error", [ValueError("a proto"), RuntimeError("can't start new thread")])
def test_a_task_that_could_not_be_taken_back_is_taken_back_later(monkeypatch, error):
    errors, is_back = [error], threading.Event()

    def reconnect(tasks):
        if errors:
            raise errors.pop()
        is_back.set()

    monkeypatch.setattr(task_pool, "SECONDS_BETWEEN_CHECKS", 0.01)
    monkeypatch.setattr(task_pool, "answers", lambda address: True)
    pool = Pool({TASK: "localhost:1"}, 30.0, reconnect)
    try:
        pool._lose(TASK, "is gone")
        assert is_back.wait(30)
    finally:
        pool.close()
        pool._returns.join()
    assert pool.tasks == (TASK,)


class Tasks:
    """Tasks of a pool, some of which are silent."""

    def __init__(self, monkeypatch, count, silent=()):
        self.all = [Task("worker", index) for index in range(count)]
        addresses = {task: f"localhost:{task.index}" for task in self.all}
        self.silent = {addresses[self.all[index]] for index in silent}
        self.asked, self.is_over = [], threading.Event()
        monkeypatch.setattr(task_pool, "answers", self.answers)
        monkeypatch.setattr(task_pool, "_SECONDS_TO_BE_GONE", 0.0)
        monkeypatch.setattr(task_pool, "SECONDS_BETWEEN_CHECKS", 0.01)
        self.pool = Pool(addresses, 30.0, lambda tasks: None)

    def answers(self, address):
        self.asked.append(address)
        if address in self.silent:
            assert self.is_over.wait(30)  # it takes a while to find out that a task is silent
            return None
        return True


@pytest.fixture
def tasks(monkeypatch):
    made = []

    def make(*args, **options):
        made.append(Tasks(monkeypatch, *args, **options))
        return made[-1]

    yield make
    for each in made:
        each.is_over.set()
        each.pool.close()


def test_tasks_that_compute_do_not_wait_for_what_silent_ones_answer(tasks):
    few = tasks(3, silent=[0, 1])

    def call(task, number):
        if task.index < 2:
            few.is_over.wait(30)
        elif number == 99:
            few.is_over.set()  # all others are done
        elif number > 2:
            threading.Event().wait(0.01)
        return number

    assert few.pool.share(100, call, few.all) == list(range(100))
    assert few.silent <= set(few.asked)
    assert few.pool.tasks == tuple(few.all)


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
@pytest.mark.parametrize("count", [1, 3])
def test_an_error_of_the_function_that_looks_like_that_of_a_lost_task_is_raised(
    tasks, monkeypatch, error, count
):
    few, calls = tasks(count), []
    monkeypatch.setattr(task_pool, "_still_computes", lambda task: True)

    def call(task, number):
        calls.append(number)
        raise error(None, None, "the bucket is not available")

    with pytest.raises(error, match="the bucket"):
        few.pool.share(1, call, few.all)
    assert calls == [0, 0]
    assert few.pool.tasks == tuple(few.all)


def test_no_other_call_runs_any_more_when_the_error_of_one_is_raised(tasks, monkeypatch):
    few, ended, is_awaited, wait = tasks(2), [], threading.Event(), task_pool._await

    def awaited(*words):
        is_awaited.set()
        wait(*words)

    def call(task, number):
        if number == 0:
            raise ValueError("a mistake")
        assert is_awaited.wait(30)
        ended.append(number)

    monkeypatch.setattr(task_pool, "_await", awaited)
    with pytest.raises(ValueError, match="a mistake"):
        few.pool.share(2, call, few.all)
    assert ended == [1]
    monkeypatch.setattr(task_pool, "_SECONDS_TO_END", 0.0)
    is_awaited.clear()
    monkeypatch.setattr(task_pool, "_await", wait)
    with pytest.raises(ValueError, match="a mistake"):  # though the other takes long
        few.pool.share(2, call, few.all)
    is_awaited.set()
    assert few.pool.share(2, lambda task, number: number, few.all) == [0, 1]


def test_a_call_whose_connection_breaks_for_a_moment_is_made_again(tasks, monkeypatch):
    few, errors = tasks(2), [tf.errors.UnavailableError(None, None, "Socket closed")]
    monkeypatch.setattr(task_pool, "_still_computes", lambda task: True)

    def call(task, number):
        if errors:
            raise errors.pop()
        return number

    assert few.pool.share(3, call, few.all) == [0, 1, 2]
    assert few.pool.tasks == tuple(few.all)


def test_a_task_that_was_started_again_gets_no_call_until_it_is_back(tasks, monkeypatch):
    few = tasks(2)
    monkeypatch.setattr(task_pool, "_still_computes", lambda task: False)
    monkeypatch.setattr(few.pool, "_await_returns", lambda: None)

    def call(task, number):
        if task.index == 0:
            raise tf.errors.AbortedError(None, None, "its context is unknown")
        return number

    assert few.pool.share(3, call, few.all) == [0, 1, 2]
    assert few.pool.tasks == (few.all[1],)
