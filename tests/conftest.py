"""Isolate every test from the surroundings of this machine, and from what other tests change in them."""

import fcntl
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from commands import load_tensorflow_once, script_forked
from tfdist.launcher.onednn_variables import enable_onednn

_SCHEDULERS = (
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "SM_",
    "SLURM_",
    "OMPI_",
    "JOB_COMPLETION_INDEX",
    "JOBSET_",
    "SKYPILOT_",
    "TFDIST_",
)

# A shell that starts pytest by & has it ignore SIGINT, and nohup SIGHUP, and so all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests tell private files from others, and let other users read these.
os.umask(0o022)


# A busy machine is no failure, and the examples are the same each time.
settings.register_profile(
    "untimed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# As the commands have it: TensorFlow loads jax where there is one, and jax sets another level for all who come after.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# When a run has no time left, in seconds of the epoch.
_END = float(os.environ.get("TFDIST_TEST_END", "inf"))

# As the commands do: what they compute is compared with what is computed here.
enable_onednn()


_SHARE_FIXTURES = {
    "test_network.py",
    "test_predict.py",
    "test_remote.py",
    # Slurm starts in a second, and its tests wait most of the time: two processes wait for two of them at once.
    "test_compose.py",
    "test_ray_launch.py",
    "test_ssh.py",
}
_MOST_PROCESSES = 8  # each starts clusters, whose tasks need memory


class _ByTest(LoadScopeScheduling):
    """Share the tests out to processes one by one, except where those of a file share what is costly."""

    def _split_scope(self, nodeid):
        path = PurePosixPath(nodeid.partition("::")[0])
        is_shared = "unit" in path.parts or path.name in _SHARE_FIXTURES
        return str(path) if is_shared else nodeid


def pytest_xdist_make_scheduler(config, log):
    return _ByTest(config, log)


def pytest_xdist_auto_num_workers(config):
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return min(len(cores), _MOST_PROCESSES)


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that no process is alone with it in the end."""
    items.sort(key=lambda item: "faults" not in item.keywords)
    for item in items:
        if item.name.startswith("test_all_of_this_holds_on_several_devices"):  # which runs a whole file
            item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.time() > _END:
        pytest.skip(f"no time was left for {item.nodeid}")


def pytest_collection_finish():
    gc.freeze()  # TensorFlow, of which nothing is garbage: to look through it again and again takes its time


@pytest.fixture(autouse=True)
def _nothing_leaks():
    """Fail a test that leaves an environment variable or a child process behind."""
    before, children, had_tensorflow = _variables(), _children(), "tensorflow" in sys.modules
    yield
    if had_tensorflow or "tensorflow" not in sys.modules:  # which sets variables when it is first imported
        after = _variables()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert not changed, f"environment variables left changed: {changed}"
    assert _children() <= children, "a child process was left behind"


@pytest.fixture(autouse=True)
def _signals_are_heeded():
    """Restore what signals do after a test of a command, which ignores some once its exit status is settled."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _no_scheduler(_nothing_leaks, monkeypatch):
    for name in list(os.environ):
        if name.startswith(_SCHEDULERS):
            monkeypatch.delenv(name)


@pytest.fixture
def unknown_host(monkeypatch):
    """Return a name that is known to be unknown at once: a resolver without a network may take its time."""
    name, look_up = "no-such-host.invalid", socket.getaddrinfo

    def refuse(host, *arguments, **keywords):
        if host == name:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return name


@pytest.fixture(scope="session")
def of_all(tmp_path_factory, worker_id):
    """Return a folder that all processes of this run of the tests share."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session")
def cache(of_all):
    """Return a folder for prepared data: the digits are drawn once."""
    return str(of_all / "cache")


@pytest.fixture(scope="session")
def once(of_all):
    """Return a function that computes something once for all processes, which JSON can hold, by its name."""

    def result(name, compute):
        path = of_all / f"{name}.json"
        with open(of_all / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(compute()))
        return json.loads(path.read_text())

    return result


@pytest.fixture(scope="session")
def forking():
    """Start the process that tasks and commands are forked from."""
    load_tensorflow_once()


@pytest.fixture
def run_program(tmp_path, forking):
    """Return a function that runs the text of a program as a script, in a process that has loaded TensorFlow."""

    def run(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        return script_forked(script)

    return run


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _children() -> set[str]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
            return set(file.read().split())
    except FileNotFoundError:  # a system without /proc
        return set()
