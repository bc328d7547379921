import os
import subprocess
import sys

import pytest

from tfdist._utils.new_run_folder import claimed_run_folder, new_run_folder
from tfdist.errors import ConfigError


def test_runs_that_begin_in_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: form.replace("%Y%m%d-%H%M%S", "20260101-120000"))
    folders = [new_run_folder("launch") for _ in range(3)]
    assert [str(folder) for folder in folders] == [
        f"runs/launch-20260101-120000{end}" for end in ("", "-2", "-3")
    ]
    assert all(folder.is_dir() for folder in folders)


_CLAIMS = """
import sys
import time
from tfdist._utils.new_run_folder import new_run_folder
time.strftime = lambda form: form.replace("%Y%m%d-%H%M%S", "20260101-120000")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    print(new_run_folder("x"))
"""


def test_processes_that_claim_folders_at_once_share_none(tmp_path):
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    processes = [subprocess.Popen([sys.executable, "-c", _CLAIMS], **options) for _ in range(4)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        claimed = [line for process in processes for line in process.communicate(timeout=60)[0].splitlines()]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(claimed) == len(set(claimed)) == len(os.listdir(tmp_path / "runs")) == 400


def test_a_claimed_folder_in_which_nothing_is_written_is_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with claimed_run_folder("x") as used, claimed_run_folder("x") as unused:
        assert unused.is_dir()
        (used / "logs").mkdir()
    assert os.listdir("runs") == [used.name]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    with pytest.raises(
        ConfigError, match=r"^run_dir: runs/launch-\S+ cannot be made: Not a directory\. Choose one"
    ):
        new_run_folder("launch")
