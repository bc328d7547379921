"""Being told to end while the cluster is connected, when a thread hears it in the place of the main one."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tfdist.coordination import preemption

CONNECTING = """
import sys
from tfdist.coordination.preemption import Notice

with Notice().kept():
    print("connecting", flush=True)
    sys.stdin.read()
print("connected", flush=True)
"""


@pytest.fixture
def connecting():
    with subprocess.Popen(
        [sys.executable, "-c", CONNECTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "connecting\n"
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS cannot wait for a signal in a thread")
def test_being_told_to_end_ends_what_connects(connecting):
    connecting.terminate()
    assert connecting.wait(20) == 138
    assert (
        connecting.stderr.read()
        == "tfdist: SIGTERM: this task was told to end. Start it again: it continues\n"
    )


def test_being_stopped_for_a_while_is_not_being_told_to_end(connecting):
    for _ in range(5):  # each at another moment of its looks
        os.kill(connecting.pid, signal.SIGSTOP)
        time.sleep(2.3 * preemption._SECONDS_BETWEEN_POLLS)
        os.kill(connecting.pid, signal.SIGCONT)
        time.sleep(0.4 * preemption._SECONDS_BETWEEN_POLLS)
    said, warned = connecting.communicate(timeout=20)
    assert (connecting.returncode, said, warned) == (0, "connected\n", "")
