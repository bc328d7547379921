"""What Prometheus reads of a run, over HTTP as it reads it."""

import contextlib
import logging
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from launched import nothing_left  # noqa: F401  # a fixture

from commands import tfdist
from tfdist.cluster.addresses_and_free_ports import LocalPorts
from tfdist.errors import ConfigError
from tfdist.launcher import metrics_server
from tfdist.launcher.prometheus_metrics import serving_metrics
from tfdist.launcher.run_events import (
    CheckpointSaved,
    EpochEnded,
    Evaluated,
    LaunchStarted,
    Progressed,
    TaskExited,
    TaskSpeed,
    TasksRestarting,
    TaskStarted,
    Warned,
)

SECONDS = 300  # a busy machine is no failure


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # whatever proxy the machine has


@pytest.fixture
def port():
    reserved = LocalPorts(1)
    yield reserved.ports[0]
    del reserved  # until now it kept the port


def scraped(port):
    """Return the samples that a scrape finds, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_a_scrape_finds_what_has_happened(port):
    with serving_metrics(port, "127.0.0.1") as metrics:
        metrics.handle(LaunchStarted(tasks={"chief:0": "a:1", "worker:0": "a:2"}, command=["x"], shares=""))
        metrics.handle(TaskStarted(task="worker:0", pid=5))
        metrics.handle(TaskExited(task="worker:0", pid=5, status=-9, was_asked=False, starts_again=True))
        metrics.handle(TasksRestarting(task="worker:0", all_tasks=False, pause=0, restart=1, restarts=3))
        metrics.handle(TasksRestarting(task="worker:0", all_tasks=True, pause=0, restart=2, restarts=3))
        metrics.handle(TaskStarted(task="chief:0", pid=6))
        metrics.handle(TaskSpeed(step=5, milliseconds={"worker:0": 20.0}, shares={"worker:0": 1.0}))
        metrics.handle(Evaluated(step=5, results={"accuracy": 0.5, "loss": None}))
        metrics.handle(CheckpointSaved(step=4, seconds=0.1))
        metrics.handle(Warned(text="slow"))
        metrics.handle(Progressed(step=5, steps=10, examples_per_second=7.0, loss=0.25, time=1000.0))
        found = scraped(port)
        expected = {
            "tfdist_step": 5,
            "tfdist_steps": 10,
            "tfdist_examples_per_second": 7,
            "tfdist_loss": 0.25,
            "tfdist_progress_timestamp_seconds": 1000,
            'tfdist_task_up{task="chief:0"}': 1,
            'tfdist_task_up{task="worker:0"}': 0,
            'tfdist_task_restarts_total{task="chief:0"}': 1,
            'tfdist_task_restarts_total{task="worker:0"}': 2,
            'tfdist_task_step_seconds{task="worker:0"}': 0.02,
            'tfdist_evaluation{metric="accuracy"}': 0.5,
            "tfdist_checkpoint_step": 4,
            "tfdist_warnings_total": 1,
        }
        assert {name: found[name] for name in expected} == expected
        assert str(found['tfdist_evaluation{metric="loss"}']) == "nan"
        metrics.handle(Progressed(6, 10))
        assert scraped(port)["tfdist_step"] == 6
    with pytest.raises(urllib.error.URLError):  # the port is closed again
        scraped(port)


def test_the_evaluation_of_an_epoch_is_that_of_the_validation_data(port):
    with serving_metrics(port, "127.0.0.1") as metrics:
        metrics.handle(EpochEnded(epoch=0, epochs=2, logs={"accuracy": 0.9, "lr": 1.0, "val_accuracy": 0.5}))
        found = scraped(port)
    assert {name: value for name, value in found.items() if name.startswith("tfdist_evaluation")} == {
        'tfdist_evaluation{metric="accuracy"}': 0.5
    }


def idle(port, count):
    """Return connections that send half a request."""
    connections = []
    for _ in range(count):
        connections.append(socket.create_connection(("127.0.0.1", port), SECONDS))
        connections[-1].sendall(b"GET /met")  # before a later one takes its place, which would reset it
    return connections


def test_who_sends_nothing_keeps_no_place(port, monkeypatch):
    monkeypatch.setattr(metrics_server, "_MOST_CALLERS", 3)
    before = threading.active_count()
    with serving_metrics(port, "127.0.0.1"), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connection) for connection in idle(port, 8)]
        for connection in connections[:5]:
            assert connection.recv(1) == b""
        assert "tfdist_step" in scraped(port)
        until(lambda: threading.active_count() <= before + 1 + 3)


def test_who_sends_nothing_is_disconnected_after_a_while(port, monkeypatch, capfd, caplog):
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.05)
    caplog.set_level(logging.INFO, "tfdist")
    with serving_metrics(port, "127.0.0.1"):
        for connection in idle(port, 2):
            with connection, contextlib.suppress(ConnectionResetError):  # it has sent too late
                assert connection.recv(1) == b""
        until(lambda: caplog.text.count("a request for metrics by 127.0.0.1 has failed: timed out") == 2)
    assert capfd.readouterr() == ("", "")


def until(is_true):
    end = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.usefixtures("nothing_left")
def test_a_launcher_serves_what_it_sees(tmp_path, port):
    code = f"""
import time, urllib.request
from tfdist.launcher import report_progress
report_progress(3, 10, loss=0.5)
text, end = "", time.monotonic() + {SECONDS}
while not ("tfdist_step 3.0" in text and "tfdist_task_up" in text) and time.monotonic() < end:
    time.sleep(0.1)
    text = urllib.request.urlopen("http://127.0.0.1:{port}/metrics", timeout={SECONDS}).read().decode()
print(text)
"""
    (tmp_path / "script.py").write_text(code)
    words = ["launch", "--workers=1", "--network_isolation=never", "--prometheus_address=127.0.0.1"]
    script = ["--", sys.executable, "script.py"]
    done = tfdist(*words, f"--prometheus_port={port}", *script, cwd=tmp_path)
    assert "[worker:0] tfdist_step 3.0\n" in done.stdout, done.stderr
    assert '[worker:0] tfdist_task_up{task="worker:0"} 1.0\n' in done.stdout
    with socket.create_server(("127.0.0.1", port)):
        refused = tfdist(*words, f"--prometheus_port={port}", *script, cwd=tmp_path)
    assert refused.returncode == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1  # that of the first
    assert refused.stderr.startswith("tfdist: --prometheus_port: cannot listen on 127.0.0.1:")


def test_without_a_port_nothing_is_served():
    with serving_metrics(None, "0.0.0.0") as metrics:
        assert metrics is None


def test_a_taken_port_is_one_line(port):
    listening = socket.create_server(("127.0.0.1", port))
    with listening, pytest.raises(ConfigError) as raised, serving_metrics(port, "127.0.0.1"):
        pass
    assert str(raised.value) == (
        f"metrics.prometheus_port: cannot listen on 127.0.0.1:{port}: Address already in use. Set another one"
    )


def test_an_address_of_another_machine_is_one_line(port):
    with (
        pytest.raises(ConfigError, match=r"Check metrics.prometheus_address"),
        serving_metrics(port, "192.0.2.1"),
    ):
        pass


def test_a_missing_package_is_one_line(monkeypatch, port):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'tfdist\[metrics\]'"),
        serving_metrics(port, "127.0.0.1"),
    ):
        pass
