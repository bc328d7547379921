"""What every command does with its command line: flags, `--help`, and how much it prints."""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

from commands import tfdist
from tfdist.__main__ import main as tfdist_main
from tfdist.cli import launch
from tfdist.errors import ConfigError

NOTE = "E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error"


@pytest.mark.parametrize("verbosity", [0, 1])
def test_verbosity_brings_back_what_only_the_logs_keep(verbosity, tmp_path):
    words = ["--workers=1", "--network_isolation=never", f"--verbosity={verbosity}"]
    done = tfdist("launch", *words, "--", sys.executable, "-c", f"print({NOTE!r})", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (NOTE in done.stdout) == bool(verbosity)


def test_help_has_the_flags_of_the_command_as_wide_as_the_terminal():
    done = tfdist("launch", "--help", COLUMNS="60")
    flags = done.stdout.partition("\nFlags:\n")[2]
    assert (
        "  --job                 A job of any name and how many\n"
        "                        tasks, trainer=3; can be repeated.\n"
    ) in flags
    assert max(map(len, flags.splitlines())) <= 60
    assert "Flags:" not in tfdist("list", "--help").stdout


def test_flags_of_the_processes_of_a_command_are_not_in_its_help():
    for command, names in {"verify": ("--record", "--reverse"), "bench": ("--record",)}.items():
        done = tfdist(command, "--help")
        assert "  --steps" in done.stdout
        assert not [name for name in names if name in done.stdout]


def test_the_help_says_how_to_get_that_of_a_command():
    assert "tfdist COMMAND --help describes a command" in tfdist("--help").stdout.splitlines()[-1]


def test_windows_is_named_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        tfdist_main()
    assert ended.value.code == 2
    message = "tfdist: Windows is not supported. Install WSL 2, and type the command there\n"
    assert capsys.readouterr().err == message
    with pytest.raises(
        ImportError, match=r"Windows is not supported\. Install WSL 2, and run the script there"
    ):
        from tfdist import make_strategy  # noqa: F401


def test_an_empty_run_dir_is_a_mistake_of_the_user(tmp_path):
    done = tfdist("launch", "--run_dir=", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "tfdist: --run_dir: is empty. Is a variable unset?\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_is_finite(value, tmp_path):
    done = tfdist("launch", f"--heartbeat_timeout={value}", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"tfdist: --heartbeat_timeout: expected a number, received {value}\n"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"job": ["trainer=3", "trainer=5"]}, "--job: 'trainer' has a number of tasks already"),
        ({"job": ["worker=3"], "workers": 2}, "--job: 'worker' has a number of tasks already"),
        ({"job": ["ps=3"], "ps": 2}, "--job: 'ps' has a number of tasks already"),
        ({"alone": ["wroker"]}, "alone: there is no 'wroker'. Did you mean 'worker'"),
    ],
)
def test_a_mistake_in_the_flags_of_a_launch_leaves_no_folder(tmp_path, monkeypatch, flags, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=problem):
        launch.main([sys.executable, "-c", ""], **flags)
    assert list(tmp_path.glob("runs/*")) == []


def test_the_help_and_the_configs_fit_a_narrow_terminal():
    for words in ((), ("configs",)):
        shown = _on_terminal("tfdist", *words, columns=60)
        assert max(map(len, shown)) <= 60
        assert [line for line in shown if line.startswith(" " * 11)]


def test_a_list_without_jobs_says_so(tmp_path):
    done = tfdist("list", XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "no jobs; tfdist submit ENGINE submits one\n")


def _on_terminal(*words, columns):
    """Return the lines that a command shows on a terminal of a width."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # Not by default: readline, which pytest loads, may have set COLUMNS behind Python's back.
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", *words]
    subprocess.run(command, env=environ, stdout=slave, stderr=slave, timeout=60, check=False)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # its end
        while data := os.read(master, 65536):
            shown += data
    os.close(master)
    return shown.decode().splitlines()
