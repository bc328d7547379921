"""Memory that tensors give back stays with the process: counted in pages that the kernel hands out."""

import os
import subprocess
import sys

import pytest

from tfdist.strategies.cpu_malloc import keep_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="is for Linux's C library")

# A step takes 64 MB in pieces and gives all of it back; the first one may take them from the kernel.
_PAGES_OF_TEN_STEPS = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: where the kernel has large pages, it hands out few
def step():
    held = [b"x" * (1 << 23) for _ in range(8)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    step()
before = faults()
for _ in range(10):
    step()
print("pages", faults() - before)
"""
_PAGES_OF_A_STEP = (1 << 26) // 4096


def pages(first: str, **environ: str) -> int:
    """Count them in a process of its own, after a first statement."""
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    said = subprocess.run(
        [sys.executable, "-c", first + _PAGES_OF_TEN_STEPS],
        env={**clean, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(said.stdout.rpartition("pages ")[2])


KEEP = "from tfdist.strategies.cpu_malloc import keep_memory; assert keep_memory()"
TRY = "from tfdist.strategies.cpu_malloc import keep_memory; assert not keep_memory()"


def test_a_step_takes_what_the_last_one_gave_back() -> None:
    assert pages("") > 5 * _PAGES_OF_A_STEP
    assert pages(KEEP) < _PAGES_OF_A_STEP / 10


def test_a_strategy_keeps_memory() -> None:
    assert pages("import tfdist; tfdist.make_strategy(None)") < _PAGES_OF_A_STEP


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.top_pad=131072")],
)
def test_what_the_user_has_set_up_is_left_alone(name: str, value: str) -> None:
    assert pages(TRY, **{name: value}) > 5 * _PAGES_OF_A_STEP


def test_tunables_that_are_not_about_memory_are_no_objection() -> None:
    assert pages(KEEP, GLIBC_TUNABLES="glibc.rtld.nns=4") < _PAGES_OF_A_STEP / 10


def test_another_system_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_memory()
