"""What ends a command, whatever becomes of its output: an exit status and a line, and no traceback."""

import subprocess
import sys

import pytest

from tfdist.cli._exit_status import exit_status
from tfdist.launcher.run_events import FILE

FULL = "tfdist: standard output: cannot be written: No space left on device. Free disk space, or redirect it elsewhere\n"
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ("configs >&-", 0, ""),
        ("configs >&- 2>&-", 0, ""),
        ("configs >/dev/full", 2, FULL),
        ("configs >/dev/full 2>/dev/full", 2, ""),
        ("--help >/dev/full", 2, FULL),
        ("--help | true", 0, ""),
        ("--version | true", 0, ""),
        ("schema | head -1", 0, ""),
        ("no-such-command 2>&-", 2, ""),
    ],
)
def test_output_may_be_closed_or_full(words, status, error, shell):
    done = shell(words)
    assert (done.returncode, done.stderr) == (status, error)


def test_what_an_encoding_does_not_have_is_escaped(shell):
    done = shell("simulate --help", **ASCII)
    assert done.returncode == 0, done.stderr
    assert r"in steps of 1, 2, 5, 10 \u2026, or 1,2,4" in " ".join(done.stdout.split())


@pytest.fixture
def shell(monkeypatch):
    def run(words, **environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        command = ["bash", "-c", f"set -o pipefail; {sys.executable} -m tfdist {words}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


def test_other_errors_keep_their_traceback():
    def fails():
        raise FileNotFoundError(2, "No such file or directory", "data")

    with pytest.raises(FileNotFoundError):
        exit_status(fails)


@pytest.mark.parametrize(("error", "status"), [("Preempted", 138), ("ConfigError", -15)])
def test_a_late_signal_leaves_the_status_of_saved_work(error, status):
    code = (
        "import atexit, signal, sys\n"
        "from tfdist.cli._exit_status import exit_status\n"
        f"from tfdist.errors import {error}\n"
        "def fail(): raise " + error + "('here', 'is saved')\n"
        "atexit.register(signal.raise_signal, signal.SIGTERM)\n"
        "sys.exit(exit_status(fail))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == status


def test_a_signal_while_the_page_is_written_leaves_the_status_of_saved_work(tmp_path):
    (tmp_path / FILE).touch()
    code = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from tfdist.cli._end_of_run import page_written\nfrom tfdist.cli._exit_status import exit_status\n"
        "from tfdist.errors import Preempted\n"
        "def fail():\n    with page_written(Path(sys.argv[1]), lambda: signal.raise_signal(signal.SIGHUP)):\n"
        "        raise Preempted('here', 'is saved')\nsys.exit(exit_status(fail))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False).returncode == 138
    )


def test_ctrl_c_has_its_status():
    def interrupted():
        raise KeyboardInterrupt

    assert exit_status(interrupted) == 130


@pytest.mark.parametrize("program", ["tfdist", "tfdist.train"])
@pytest.mark.parametrize("module", ["tfdist.cli", "msgspec"])
def test_ctrl_c_while_a_command_is_loaded_has_it_too(program, module):
    code = f"""
import runpy, sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
sys.argv[1:] = ["env"]
runpy.run_module({program!r}, run_name="__main__", alter_sys=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
