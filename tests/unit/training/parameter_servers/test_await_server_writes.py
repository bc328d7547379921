"""What writes to variables on parameter servers ends, though a server is stopped and never answers."""

import threading

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.parameter_servers import await_server_writes  # noqa: E402  # after the check of TensorFlow
from tfdist.training.parameter_servers.await_server_writes import write_to_servers  # noqa: E402


@pytest.fixture
def one_server(monkeypatch):
    monkeypatch.setattr(await_server_writes, "_server_count", lambda _: 1)
    monkeypatch.setattr(await_server_writes, "_SECONDS_BETWEEN_CHECKS", 0.01)


@pytest.mark.usefixtures("one_server")
def test_a_write_to_a_silent_server_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(await_server_writes, "silent_tasks", lambda *_: ["ps:0"])
    answer = threading.Event()
    write_to_servers(None, answer.wait)
    answer.set()


@pytest.mark.usefixtures("one_server")
def test_a_slow_write_is_awaited_and_its_error_is_raised(monkeypatch):
    looks, answer = [], threading.Event()

    def silent(*_):
        looks.append(1)
        if len(looks) == 3:
            answer.set()
        return []

    def write():
        answer.wait()
        raise tf.errors.UnavailableError(None, None, "gone")

    monkeypatch.setattr(await_server_writes, "silent_tasks", silent)
    with pytest.raises(tf.errors.UnavailableError, match="gone"):
        write_to_servers(None, write)
    assert len(looks) >= 3


def test_the_servers_of_a_strategy_are_counted_once(monkeypatch):
    counted, written = [], []
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    monkeypatch.setattr(await_server_writes, "addresses_of", lambda of: counted.append(of) or {})
    for number in range(3):
        write_to_servers(strategy, lambda number=number: written.append(number))
    assert counted == [strategy]
    assert written == [0, 1, 2]
