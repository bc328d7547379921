"""A task that serves counts its chief's silence, and names what keeps its server from starting."""

import pytest
import tensorflow as tf

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination import grpc_health_probe
from tfdist.coordination.stop_signals import Notice
from tfdist.errors import ConfigError, TaskLost
from tfdist.strategies import server

CLUSTER = ClusterConfig(chief=["a:1"], worker=["b:1"], ps=["c:1"]).with_task("ps", 0)


class Clock:
    """A clock that jumps when the whole cluster has been stopped."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def wait(monkeypatch, answers, *, is_told=False):
    """Wait for a chief that gives these answers, each after so many seconds in which this process stood still."""
    clock, coming = Clock(), iter(answers)

    def answer(address):
        pause, answer = next(coming)
        clock.now += pause
        return answer

    for module in (server, grpc_health_probe):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(server, "answers", answer)
    monkeypatch.setattr(server, "was_dismissed", lambda: False)
    monkeypatch.setattr(server, "is_shutdown_told", lambda: False)
    monkeypatch.setattr(server, "announce_termination", lambda: None)
    notice = Notice()
    notice.is_received = is_told
    server._wait_until_gone(CLUSTER, 30.0, notice, gives_up_first=False)
    return clock.now


def test_one_late_answer_after_a_long_pause_is_no_silence(monkeypatch):
    wait(monkeypatch, [(0, True), (300, None), (0, True), (0, False), (0, False)])


def test_a_chief_that_stays_silent_is_lost(monkeypatch):
    with pytest.raises(TaskLost, match="has been silent for 30 s"):
        wait(monkeypatch, [(0, True)] + [(2, None)] * 15)


@pytest.mark.parametrize(("grace", "seconds"), [(None, 25), ("600", 595)])
def test_a_server_that_is_told_to_end_gives_the_chief_the_launchers_time(monkeypatch, grace, seconds):
    if grace is not None:
        monkeypatch.setenv("TFDIST_GRACE", grace)
    # It asks without a pause then, and this clock stands still otherwise.
    assert seconds < wait(monkeypatch, ((1, True) for _ in range(1000)), is_told=True) < seconds + 3


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (tf.errors.UnknownError(None, None, "Could not start gRPC server"), ConfigError),
        (tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY"), tf.errors.InternalError),
    ],
)
def test_only_a_taken_port_is_named_so(monkeypatch, error, raised):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(tf.distribute, "Server", fails)
    with pytest.raises(raised):
        server._start(CLUSTER, None)
