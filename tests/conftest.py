"""Keep every test from seeing the surroundings of this machine, and from changing them for the next."""

import os
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


@pytest.fixture(autouse=True)
def _nothing_leaks():
    """Fail a test that leaves an environment variable or a child process behind."""
    before = dict(os.environ)
    children = _children()
    yield
    after = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    before.pop("PYTEST_CURRENT_TEST", None)
    # TensorFlow sets these for itself when it is first imported.
    changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} - {"TF2_BEHAVIOR"}
    assert not changed, f"environment variables left changed: {changed}"
    assert _children() <= children, "a child process was left behind"


@pytest.fixture(autouse=True)
def _no_scheduler(_nothing_leaks, monkeypatch):
    for name in list(os.environ):
        if name.startswith(_SCHEDULERS):
            monkeypatch.delenv(name)


def _children() -> set[str]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
            return set(file.read().split())
    except FileNotFoundError:  # a system without /proc
        return set()
