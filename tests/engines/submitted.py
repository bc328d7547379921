"""Ask for the state of a submitted job by the command line, and wait for one."""

import time

__all__ = ["state", "until"]


def state(tfdist, handle):
    """Return the state that `tfdist status` prints."""
    return tfdist("status", handle).split("  ")[1].partition(" ")[0]


def until(wanted, tfdist, handle, *, seconds):
    """Wait until a job has a state; fail with what it has printed after so many seconds."""
    deadline = time.monotonic() + seconds
    while state(tfdist, handle) != wanted:
        assert time.monotonic() < deadline, f"{tfdist('status', handle)}{tfdist('logs', handle)}"
        time.sleep(0.3)
