"""All workers and servers are asked to connect at once, and one that does not answer is named."""

import re
import threading

import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from tfdist.cluster.config import ClusterConfig, Task  # noqa: E402  # after the check that TensorFlow is there
from tfdist.errors import TaskLost  # noqa: E402
from tfdist.strategies import ps_transfer  # noqa: E402
from tfdist.strategies.ps_transfer import PsTransfer  # noqa: E402
from tfdist.transport.listen_and_call import ConnectError  # noqa: E402

PORT, COUNT = b"4711", 3


@pytest.fixture
def cluster():
    return ClusterConfig.local(workers=COUNT, ps=COUNT)


def answering(monkeypatch, answer):
    monkeypatch.setattr(ps_transfer, "call", lambda task, name, dtype, *inputs: answer(task))


def transfer(cluster):
    settings = {"wire_type": "float32", "is_in_step": True, "timeout": None, "is_asked_for": True}
    return PsTransfer(cluster, **settings, is_encrypted=False)


def test_all_tasks_are_asked_at_once(cluster, monkeypatch):
    all_are_asked = threading.Barrier(COUNT, timeout=30)

    def answer(task):
        all_are_asked.wait()
        return PORT if task.type == "ps" else b""

    answering(monkeypatch, answer)
    assert transfer(cluster)._addresses.count(PORT) == COUNT


@pytest.mark.parametrize("silent", [Task("ps", 1), again(Task("worker", 2))])
def test_one_that_does_not_answer_is_named(cluster, silent, monkeypatch):
    monkeypatch.setattr(ps_transfer, "_SECONDS_TO_ANSWER", 5.0)
    is_over = threading.Event()

    def answer(task):
        if task == silent:
            is_over.wait(30)
        return PORT if task.type == "ps" else b""

    answering(monkeypatch, answer)
    try:
        with pytest.raises(
            TaskLost, match=re.escape(f"waited 5 s for an answer of {silent} at {cluster.address(silent)}")
        ):
            transfer(cluster)
    finally:
        is_over.set()


def test_a_worker_that_cannot_connect_says_to_which_server(cluster, monkeypatch):
    answering(monkeypatch, lambda task: PORT if task.type == "ps" else b"ps:1 at there: does not answer")
    with pytest.raises(ConnectError, match="worker:0 has no connection to ps:1 at there: does not answer"):
        transfer(cluster)


def test_the_first_of_tasks_that_are_gone_is_the_error_of_tensorflow(cluster, monkeypatch):
    others_have_failed = threading.Event()

    def answer(task):
        if task.index == 0:
            others_have_failed.wait(30)
        if task.index == COUNT - 1:
            others_have_failed.set()
        raise tf.errors.UnavailableError(None, None, f"{task} is gone")

    answering(monkeypatch, answer)
    with pytest.raises(tf.errors.UnavailableError, match="ps:0 is gone"):
        transfer(cluster)


def test_messages_of_another_chief_are_others(cluster, monkeypatch):
    answering(monkeypatch, lambda task: PORT if task.type == "ps" else b"")
    texts = {transfer(cluster)._manifest(0, [tf.zeros([])], is_state=True).numpy() for _ in range(2)}
    assert len(texts) == 2
