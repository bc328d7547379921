"""Launch real processes for the tests of the launcher, and find what they leave behind."""

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import proc
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch

MARK = "LAUNCH_TEST_MARK"
SECONDS = 300  # the hard limit of anything that is waited for; a busy machine is no failure

# A launcher in a process of its own, as a command would be: one line for an error, and its exit status.
_DRIVER = """
import json, sys
from pathlib import Path
from tfdist.cli._exit_status import exit_status
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher import launch
say = json.loads(sys.argv[1])

def run():
    try:
        launch(ClusterConfig.local(**say["cluster"]), say["command"], run_dir=Path(say["run_dir"]), **say["options"])
    except KeyboardInterrupt:
        sys.exit(99)  # the launcher has not handled it
    print("done", flush=True)

sys.exit(exit_status(run))
"""


@pytest.fixture
def nothing_left(monkeypatch):
    """Fail a test after which a process lives that it has started, however far it has gone."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    with contextlib.suppress(AssertionError):
        until(lambda: not alive(mark), "all have ended")
    assert not alive(mark)


def run(code: str, run_dir: Path, cluster: ClusterConfig | None = None, **options):
    """Launch Python code as every task in this process; give the report and what was shown."""
    cluster = cluster or ClusterConfig.local(workers=2)
    stream = io.StringIO()
    try:
        report = launch(cluster, [sys.executable, "-c", code], run_dir=run_dir, stream=stream, **options)
    except Exception as error:
        error.shown = stream.getvalue()
        raise
    return report, stream.getvalue()


def driver(
    code: str, run_dir: Path, *, cluster: dict | None = None, prefix=(), python=sys.executable, **options
):
    """Return the command line that runs a launcher in a process of its own."""
    plan = {"cluster": cluster or {"workers": 2}, "command": [python, "-c", code], "run_dir": str(run_dir)}
    return [*prefix, python, "-c", _DRIVER, json.dumps({**plan, "options": options})]


@contextlib.contextmanager
def started(command: list[str], **kwargs):
    """Start a process in a session of its own; whatever the test does, it ends."""
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, **kwargs}
    # Tests that run under nohup would hand down to it that hangups are ignored.
    heed = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(command, preexec_fn=heed, **kwargs) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until(condition, what: str, seconds: float = SECONDS):
    """Wait until something holds, and give it."""
    give_up = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return found


def holds(path: Path, text: str, times: int = 1):
    """Return whether a file contains a text at least so many times."""
    return path.exists() and path.read_text().count(text) >= times


def alive(mark: str) -> dict[int, str]:
    """Return the command lines of the processes that were started with a mark in their environment."""
    return {process.pid: process.command for process in proc.with_variable(MARK, mark)}
