"""`tfdist init` as a newcomer meets it: on a terminal, with flags, and the files that it writes in use."""

import os
import pty
import subprocess
import sys

import pytest

from commands import python, tfdist

DIGITS = ("--data", "digits")


def _on_terminal(folder, *answers):
    """Type answers to `tfdist init` on a terminal; return what it shows, and how it ends."""
    master, slave = pty.openpty()
    words = [sys.executable, "-m", "tfdist", "init", "mine"]
    with subprocess.Popen(words, cwd=folder, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        os.write(master, "".join(f"{answer}\n" for answer in answers).encode())
        if len(answers) < 3:
            os.write(master, b"\x04")  # Ctrl-D
        shown = b""
        while True:
            try:
                shown += os.read(master, 4096)
            except OSError:  # the process has ended
                break
    os.close(master)
    return shown.decode().replace("\r\n", "\n"), process.returncode


def test_on_a_terminal_it_asks_and_says_what_to_type_next(tmp_path):
    shown, status = _on_terminal(tmp_path, "ssh", "a,b", "5", "many", "4", "", "0", "", "own")

    assert status == 0, shown
    assert "expected a number from 1 to 999, received 'many'" in shown
    assert "expected a number from 1 to 4, or a word; received 0" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    commands = [line.strip() for line in shown.partition("Next:")[2].splitlines() if line.strip()]
    assert commands[::2] == ["cd mine", "tfdist submit ssh --config train.yaml"]
    text = (tmp_path / "mine" / "train.yaml").read_text()
    assert all(
        part in text
        for part in ("worker: 4", "ps: 1", "hosts: [a, b]", "parameter_server_sync", "model:build")
    )
    assert (tmp_path / "mine" / "model.py").exists()


def test_an_input_that_ends_writes_nothing(tmp_path):
    shown, status = _on_terminal(tmp_path, "here")

    assert (status, list(tmp_path.iterdir())) == (2, [])
    assert shown.splitlines()[-1] == "tfdist: tfdist init: the input ended before the last answer"


def test_without_a_terminal_it_takes_the_defaults_and_says_so(tmp_path):
    run = tfdist("init", cwd=tmp_path)

    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("no terminal to ask on; defaults: where here, strategy ")
    assert [path.name for path in tmp_path.iterdir()] == ["train.yaml"]


def test_a_file_that_exists_is_kept_without_force(tmp_path):
    mine = tmp_path / "model.py"
    mine.write_text("my own")
    words = ["init", tmp_path, "--model", "own"]
    run = tfdist(*words)

    assert (run.returncode, mine.read_text(), len(list(tmp_path.iterdir()))) == (2, "my own", 1)
    [line] = run.stderr.splitlines()
    assert line == (
        f"tfdist: {mine}: exists already. --force replaces it, or name another folder;"
        " --model model:build takes a function that it has"
    )
    assert tfdist(*words, "--force").returncode == 0
    assert "def build" in mine.read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a", "b"], "tfdist: command line: expected one folder, received 2"),
        (["--ps", "1"], "tfdist: --ps: has no effect with multi_worker_mirrored. Leave it out"),
        (["gs://x/y"], "tfdist: FOLDER: expected a path of this machine, received 'gs://x/y'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, words, line):
    run = tfdist("init", *words, cwd=tmp_path)

    assert (run.returncode, list(tmp_path.iterdir())) == (2, [])
    assert run.stderr.startswith(line)
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.again  # tests/unit/trainer/test_new_project_answers.py reads each config, and others train with one
def test_the_config_passes_a_dry_run_and_trains(tmp_path):
    flags = ["--strategy", "parameter_server_sync", "--model", "own", *DIGITS]
    assert tfdist("init", tmp_path, *flags).returncode == 0
    for mode in ("--dry_run", "--smoke"):
        run = tfdist("train", "--config", "train.yaml", mode, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    assert "(4 steps on digits)" in run.stdout


@pytest.mark.slow
def test_the_script_trains_alone_and_as_a_cluster(tmp_path):
    assert tfdist("init", tmp_path, "--data", "script", "--model", "own").returncode == 0
    alone = python("script.py", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    (tmp_path / "model.keras").unlink()
    command = [sys.executable, "script.py"]
    together = tfdist("launch", "--workers", 2, "--", *command, cwd=tmp_path)
    assert together.returncode == 0, together.stderr
    assert (tmp_path / "model.keras").exists()
    for run in (alone, together):
        [line] = [line for line in run.stdout.splitlines() if "test accuracy" in line]
        assert float(line.partition("test accuracy ")[2].split(",")[0]) > 0.8
