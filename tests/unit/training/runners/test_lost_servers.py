"""A parameter server that is gone is noticed, also where TensorFlow waits for an answer of it."""

import socket

import pytest
import tensorflow as tf

from tfdist.cluster.config import Task
from tfdist.coordination.end_stalled_workers import WorkerExecutions
from tfdist.training.data.sent_execution import Execution
from tfdist.training.error_messages import lost_task_errors
from tfdist.training.runners import pending_executions
from tfdist.training.runners.pending_executions import ScheduledExecutions


def test_a_task_that_refuses_connections_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # and does not listen, so that nobody else gets the port
        closed = f"127.0.0.1:{unheard.getsockname()[1]}"
        addresses = {
            Task("ps", 0): f"127.0.0.1:{silent.getsockname()[1]}",
            Task("ps", 1): closed,
            Task("worker", 0): closed,
        }
        monkeypatch.setattr(lost_task_errors, "addresses_of", lambda strategy: addresses)
        assert lost_task_errors.refusing_tasks(None, "ps") == [f"ps:1 at {closed}"]


def test_workers_are_lost_that_are_gone_or_that_the_chief_continues_without(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        addresses = {
            Task("worker", index): f"127.0.0.1:{each.getsockname()[1]}"
            for index, each in enumerate((silent, unheard))
        }
        monkeypatch.setattr(lost_task_errors, "addresses_of", lambda strategy: addresses)
        assert lost_task_errors.are_lost({1}, None)
        assert not lost_task_errors.are_lost({0, 1}, None)
        monkeypatch.setattr(lost_task_errors, "is_continued_without", lambda task: task == ("worker", 0))
        assert lost_task_errors.are_lost({0, 1}, None)


def test_steps_that_nobody_answers_end_if_a_server_is_gone(monkeypatch):
    monkeypatch.setattr(pending_executions, "_SECONDS_BETWEEN_SERVER_CHECKS", 0.0)
    monkeypatch.setattr(pending_executions, "has_answered", lambda closure: False)
    monkeypatch.setattr(pending_executions, "wait_for_answer", lambda closure, seconds: False)
    looks = iter([[], [], ["ps:1 at 10.0.0.4:2222"]])
    monkeypatch.setattr(pending_executions, "refusing_tasks", lambda strategy, job: next(looks))
    scheduled = ScheduledExecutions(tf.distribute.get_strategy(), WorkerExecutions())
    scheduled.add(Execution(1, closure=object()))
    with pytest.raises(tf.errors.UnavailableError, match=r"^ps:1 at 10\.0\.0\.4:2222 refuses connections"):
        scheduled.wait()
    assert next(looks, None) is None


def test_a_wait_during_which_the_whole_cluster_was_stopped_is_no_long_one(monkeypatch):
    """It would break the connections to workers that are well."""
    now, looks = [1000.0], []

    def wait(closure, seconds):
        looks.append(now[0])
        now[0] += 10_000 if len(looks) == 5 else 1
        return False

    monkeypatch.setattr(pending_executions.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pending_executions, "has_answered", lambda closure: False)
    monkeypatch.setattr(pending_executions, "wait_for_answer", wait)
    monkeypatch.setattr(pending_executions, "refusing_tasks", lambda strategy, job: [])
    scheduled = ScheduledExecutions(tf.distribute.get_strategy(), WorkerExecutions())
    scheduled.add(Execution(1, closure=object()))
    scheduled._slowest = 1.0
    assert scheduled.wait() is None
    assert len(looks) == 120 - 5 + 2  # of the pause, 5 s count
