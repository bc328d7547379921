"""A task that neither ends nor answers is named, and ends those that would wait for it."""

import contextlib
import re
import socket
import subprocess
import sys
import threading

import pytest

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination import heartbeat_watch
from tfdist.coordination.grpc_health_probe import HTTP2_SETTINGS
from tfdist.coordination.heartbeat_watch import Watcher
from tfdist.errors import ConfigError

SECONDS = 300  # a busy machine is no failure

# What a task does that waits in a call which never returns.
WAITS = """
import logging, socket, sys, threading, time
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.heartbeat_watch import Watcher

logging.basicConfig(level=logging.INFO, format="%(message)s")
is_named = threading.Event()

class Noting(logging.Handler):
    def emit(self, record):
        if "continues without it" in record.getMessage():
            is_named.set()

logging.getLogger().addHandler(Noting())
lead, other, spared = sys.argv[1:]
cluster = ClusterConfig(chief=[lead], worker=[other]).with_task("chief", 0)
kept = socket.create_connection(other.rsplit(":", 1)) if spared else None
with Watcher(cluster, heartbeat_timeout=1.5, spared=[spared]):
    is_named.wait(600)
    time.sleep(3)  # it is named once
print("went on", "without a connection" if kept and kept.recv(1) == b"" else "")
"""


def wait_for(address, *, spared="", stderr=subprocess.PIPE):
    arguments = [sys.executable, "-c", WAITS, "127.0.0.1:1", address, spared]
    pipe = subprocess.PIPE
    return subprocess.run(arguments, stdout=pipe, stderr=stderr, text=True, timeout=SECONDS, check=False)


@pytest.fixture
def silent():
    """Yield an address where the kernel accepts and nobody answers, as at a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_task_is_named_and_ends_those_that_wait_for_it(silent):
    ended = wait_for(silent)
    assert ended.returncode == 138
    assert f"tfdist: worker:0 at {silent}: silent for " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/full")
def test_a_full_disk_behind_the_log_keeps_no_process_that_has_to_end(silent):
    with open("/dev/full", "w") as full:
        assert wait_for(silent, stderr=full).returncode == 138


def test_a_task_that_is_gone_is_named_where_tensorflow_says_nothing():
    cluster = ClusterConfig.local(workers=1)  # which keeps the port
    ended = wait_for(cluster.worker[0])
    assert ended.returncode == 138
    [said] = re.findall(rf"tfdist: worker:0 at {cluster.worker[0]}: gone for (\d+) s", ended.stderr)
    assert int(said) >= 10


def test_those_that_go_on_without_it_only_name_it(silent):
    ended = wait_for(silent, spared="worker")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "went on without a connection\n"
    assert ended.stderr.count("training continues without it") == 1


def test_an_evaluator_that_was_there_and_falls_silent_is_named():
    """It may begin late and end early, so nothing is said of one that is not there."""
    is_heard = threading.Event()

    def answer():
        while not is_heard.is_set():
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.sendall(HTTP2_SETTINGS)
                connection.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        at = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", WITH_EVALUATOR, "127.0.0.1:1", at]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        thread = threading.Thread(target=answer)
        thread.start()
        with subprocess.Popen(command, text=True, **pipes) as process:
            try:
                assert process.stdout.readline() == "heard\n"
            finally:
                is_heard.set()
                thread.join()
            _, said = process.communicate(timeout=SECONDS)  # which ends the pause of its watch
    assert process.returncode == 0, said
    assert said.count("evaluator:0") == 1, said
    assert f"evaluator:0 at {at} silent for " in said


WITH_EVALUATOR = """
import logging, sys, threading, time
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination import heartbeat_watch
from tfdist.coordination.heartbeat_watch import Watcher

logging.basicConfig(level=logging.INFO, format="%(message)s")
is_named = threading.Event()
answers = heartbeat_watch.answers

def answers_and_says(address):
    is_alive = answers(address)
    if is_alive:
        print("heard", flush=True)
        sys.stdin.read()  # until nobody answers any more
    return is_alive

heartbeat_watch.answers = answers_and_says

class Noting(logging.Handler):
    def emit(self, record):
        if "silent" in record.getMessage():
            is_named.set()

logging.getLogger().addHandler(Noting())
lead, evaluator = sys.argv[1:]
cluster = ClusterConfig(worker=[lead], evaluator=[evaluator]).with_task("worker", 0)
with Watcher(cluster, heartbeat_timeout=1.5):
    is_named.wait(600)
    time.sleep(3)  # it is named once
"""


def test_a_task_without_files_breaks_the_connections_when_it_has_some(silent, monkeypatch):
    asked, is_broken = [], threading.Event()

    def break_connections(peers, of):
        asked.append(of)
        if len(asked) == 1:
            assert not heartbeat_watch.is_continued_without(Task("worker", 0))
            return None
        is_broken.set()
        return 1

    monkeypatch.setattr(heartbeat_watch, "break_connections", break_connections)
    cluster = ClusterConfig(chief=["127.0.0.1:1"], worker=[silent]).with_task("chief", 0)
    with Watcher(cluster, heartbeat_timeout=0.5, spared=["worker"]) as watcher:
        assert is_broken.wait(SECONDS)
    for thread in watcher._threads:
        thread.join(SECONDS)  # it notes what it has done
    assert set(asked) == {"worker:0"}
    assert heartbeat_watch.is_continued_without(Task("worker", 0))
    heartbeat_watch._continued_without.clear()


@pytest.mark.parametrize("timeout", [None, "30", 4.9, float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(timeout):
    with pytest.raises(ConfigError, match="start: heartbeat_timeout: expected a number of seconds from 5"):
        heartbeat_watch.check_heartbeat_timeout("start", timeout)
