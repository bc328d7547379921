"""An epoch of asynchronous workers that ends early waits for them as long as any other, and not longer."""

import collections
import threading
import types

import pytest
import tensorflow as tf

from tfdist.cluster.config import Task
from tfdist.coordination.end_stalled_workers import WorkerExecutions
from tfdist.training.data.sent_execution import Execution
from tfdist.training.runners import coordinated_runner
from tfdist.training.runners.batches_for_workers import Call
from tfdist.training.runners.coordinated_runner import CoordinatedRunner

SILENT, ANSWERING = 0, 1
ADDRESSES = {Task("worker", index): f"worker-{index}:2222" for index in (SILENT, ANSWERING)}


class Closure:
    """What TensorFlow's coordinator returns for an execution that it is to send to a worker."""

    def __init__(self, cluster, order):
        self.order, self._has_fetched_to_local, self._error = order, False, None
        self._status_available_event = types.SimpleNamespace(wait=lambda seconds: cluster.work())

    def answer(self, worker, error):
        """Answer by a worker, which was sent it before."""
        self._has_fetched_to_local, self._error = error is None, error

    def fetch(self):
        if self._error is not None:
            raise self._error
        return 1, None, 0.0


class Cluster:
    """A coordinator and two workers, the first of which keeps the first execution that it is sent."""

    def __init__(self):
        self.waiting, self.kept, self.given_back, self.sent = collections.deque(), [], 0, 0
        self.error, self.cleared, self.broken = None, threading.Event(), set()
        self.peers = {"worker-0:2222": [("10.0.0.1", 2222)], "worker-1:2222": [("10.0.0.2", 2222)]}
        self.strategy = tf.distribute.get_strategy()
        self._cluster = types.SimpleNamespace(closure_queue=self)

    @property
    def _error(self):
        return self.error

    def schedule(self, order):
        order.is_traced = True
        self.waiting.append(Closure(self, order))
        return self.waiting[-1]

    def work(self):
        """Send all that waits to the workers; return False, since the chief may wait for another answer."""
        while self.waiting:
            closure, worker = self.waiting.popleft(), ANSWERING if self.sent else SILENT
            closure.order[worker]
            self.sent += 1
            if worker == SILENT:
                self.kept.append(closure)
            else:
                closure.answer(worker, self.error)
        return False

    def break_connections(self, peers=(), _=""):
        """Send what the silent worker has kept to the other one, as TensorFlow does."""
        self.broken |= set(peers)
        self.given_back += len(self.kept)
        self.waiting.extend(self.kept)
        self.kept.clear()
        return 1

    def join(self):
        assert self.error is not None, "this waits as long as a worker is silent"
        self.cleared.set()


class Batches:
    """Batches without an end."""

    is_begun, can_be_handed_over = False, False

    def begin(self, parts, taken):
        self.is_begun = True

    def may_have_more(self):
        return True

    def call(self, steps):
        return Call(None, None, steps)


@pytest.fixture
def running(monkeypatch):
    """Return the cluster, the runner, and an epoch of 100 steps in which one step is done."""
    cluster = Cluster()
    graph = types.SimpleNamespace(executions=WorkerExecutions(), applied=None)
    graph.new_execution = lambda wanted, call: Execution(wanted, call=call)
    monkeypatch.setattr(coordinated_runner, "settle_writes", lambda strategy: None)
    monkeypatch.setattr(coordinated_runner, "silent_tasks", lambda strategy, job: [])
    monkeypatch.setattr(coordinated_runner, "addresses_of", lambda strategy: ADDRESSES)
    monkeypatch.setattr(coordinated_runner, "peers_last_at", lambda address: set(cluster.peers[address]))
    monkeypatch.setattr(coordinated_runner, "break_connections", cluster.break_connections)
    monkeypatch.setattr(CoordinatedRunner, "_send", lambda self, call, order: cluster.schedule(order))
    monkeypatch.setattr(coordinated_runner.ScheduledExecutions, "seconds_to_come_back", 0.5)
    runner = CoordinatedRunner(graph, Batches(), cluster, 2)
    parts = runner.parts(100, lambda: 1)
    assert next(parts) == (1, None)
    return cluster, runner, parts


@pytest.mark.parametrize("end", [GeneratorExit, KeyboardInterrupt])
def test_what_a_silent_worker_has_is_given_to_others_when_an_epoch_ends_early(running, end):
    cluster, runner, parts = running
    assert len(cluster.kept) == 1
    with pytest.raises(end):
        parts.throw(end)
    assert cluster.given_back == 1
    assert sum(runner.place().taken) == cluster.sent - 1
    assert runner.is_at_rest


def test_an_error_after_an_epoch_has_ended_early_is_raised_once(running):
    cluster, _, parts = running
    cluster.break_connections()
    cluster.error = tf.errors.InvalidArgumentError(None, None, "no number")
    with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
        parts.close()
    assert cluster.cleared.is_set()


def test_the_connections_to_the_machine_of_a_worker_that_is_gone_are_broken(running, caplog):
    """The name of the machine, a container, is that of another one now; and another worker has its address."""
    cluster, _, parts = running
    cluster.peers = {
        "worker-0:2222": [("10.0.0.3", 2222), ("10.0.0.4", 2222)],
        "worker-1:2222": [("10.0.0.4", 2222)],
    }
    parts.close()
    assert cluster.broken == {("10.0.0.1", 2222), ("10.0.0.3", 2222)}
    assert "1 of 2 workers have ended no step for a long time: the others take over" in caplog.text
