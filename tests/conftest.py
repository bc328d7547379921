"""Keep every test from seeing the surroundings of this machine, and from changing them for the next."""

import gc
import os
import signal
import sys
import threading
from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

from tfdist import onednn

_SCHEDULERS = (
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "SM_",
    "SLURM_",
    "OMPI_",
    "JOB_COMPLETION_INDEX",
    "JOBSET_",
    "TFDIST_",
)

# A shell that starts pytest by & has it ignore SIGINT, and so all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# As the commands do: what they compute is compared with what is computed here.
onednn.ask_for()


class _ByFile(LoadScopeScheduling):
    """Share the tests out to processes (-n 2) so that those which share fixtures stay together."""

    def _split_scope(self, nodeid):
        path = PurePosixPath(nodeid.partition("::")[0])
        return str(path.parent if path.parent.name == "cluster" else path)


def pytest_xdist_make_scheduler(config, log):
    return _ByFile(config, log)


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
def _no_scheduler(_nothing_leaks, monkeypatch):
    for name in list(os.environ):
        if name.startswith(_SCHEDULERS):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def cache(tmp_path_factory, worker_id):
    """Give a folder for prepared data that all tests share, in all processes: the digits are drawn once."""
    folder = tmp_path_factory.getbasetemp()
    return str((folder if worker_id == "master" else folder.parent) / "cache")


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _children() -> set[str]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
            return set(file.read().split())
    except FileNotFoundError:  # a system without /proc
        return set()
