"""What the tasks of a cluster are taken for while they compute."""

import socket
import threading

import pytest

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
