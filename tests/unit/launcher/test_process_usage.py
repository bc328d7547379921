"""What a process uses of a core is told over a time that its ticks can measure."""

import os
import sys

import pytest

from tfdist.launcher import process_usage
from tfdist.launcher.process_usage import ProcessUsage

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")


def test_a_look_right_after_another_tells_no_share_of_a_core(monkeypatch):
    now = 100.0
    monkeypatch.setattr(process_usage.time, "monotonic", lambda: now)
    usage = ProcessUsage()
    first = usage.of(os.getpid())
    now += 0.001
    second = usage.of(os.getpid())
    assert (first.cores, second.cores) == (None, None)
    assert first.memory > 0
    now += 10.0  # of which this process has used a moment
    assert 0.0 <= usage.of(os.getpid()).cores < 1.0


def test_a_process_that_has_ended_uses_nothing():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert ProcessUsage().of(child) is None
