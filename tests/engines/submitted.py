"""Wait for what a job, or a process, does; ask for the state of a submitted job by the command line."""

import time

__all__ = ["state", "until", "wait_for"]


def wait_for(condition, text=str, *, seconds, process=None):
    """Wait until a condition is true, and return its value.

    Args:
        condition: What is called.
        text: What is called for the text of the failure.
        seconds: For how long at most.
        process: A process that must not end meanwhile.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, f"it has ended: {text()}"
        assert time.monotonic() < deadline, text()
        time.sleep(0.1)
    return value


def state(tfdist, handle):
    """Return the state that `tfdist status` prints."""
    return tfdist("status", handle).split("  ")[1].partition(" ")[0]


def until(wanted, tfdist, handle, *, seconds):
    """Wait until a job has a state; fail with what it has printed after so many seconds."""
    wait_for(
        lambda: state(tfdist, handle) == wanted,
        lambda: f"{tfdist('status', handle)}{tfdist('logs', handle)}",
        seconds=seconds,
    )
