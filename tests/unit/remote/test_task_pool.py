"""What the tasks of a cluster are taken for while they compute."""

import socket
import threading

import pytest

from tfdist.cluster.config import Task
from tfdist.errors import TaskLost
from tfdist.remote.task_pool import Pool


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
