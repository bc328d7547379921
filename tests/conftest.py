"""Keep every test from seeing the surroundings of this machine, and from changing them for the next."""

import os
import sys
import threading

import pytest

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


def pytest_collection_modifyitems(items):
    """Where two processes share the tests out (-n 2): keep those in one of them that share fixtures."""
    for item in items:
        folder = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder == "cluster" else str(item.path)))


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
def cache(tmp_path_factory):
    """Give a folder for prepared data that all tests share: the digits are drawn once."""
    return str(tmp_path_factory.mktemp("cache"))


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _children() -> set[str]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
            return set(file.read().split())
    except FileNotFoundError:  # a system without /proc
        return set()
