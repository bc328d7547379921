"""The process beside an engine's actor: it starts a task, ends it with grace, and kills it when nobody asks any more."""

import json
import os
import subprocess
import sys
import time

import pytest

from tfdist.engines.ray import task_process

SECONDS = 60


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a task, and returns its supervisor and its number."""
    started = []

    def run(code, grace=SECONDS, **plan):
        process = subprocess.Popen(
            [sys.executable, "-I", task_process.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        command = [sys.executable, "-u", "-c", code]
        plan = {"command": command, "env": dict(os.environ), "cwd": str(tmp_path), "grace": grace, **plan}
        process.stdin.write(json.dumps({"log": str(tmp_path / "log"), **plan}).encode() + b"\n")
        process.stdin.flush()
        process.wait(SECONDS)  # it continues in another process
        return process, json.loads(process.stdout.readline())

    yield run
    for process in started:
        process.stdin.close()
        process.stdout.close()


def status(process):
    return json.loads(process.stdout.readline())["status"]


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(process):
    process.stdin.write(b"end\n")
    process.stdin.flush()


SAVES = """
import signal, sys, time

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # timeout may pass it on once more, at any time
    time.sleep(0.5)
    print("saved")
    sys.exit(138)

signal.signal(signal.SIGTERM, save)
print("up")
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"


def test_the_exit_status_and_the_output_come_back(start, tmp_path):
    process, event = start("print('hello'); raise SystemExit(3)")
    assert event["pid"] > 0
    assert status(process) == 3
    assert (tmp_path / "log").read_text() == "hello\n"


def test_a_task_that_is_told_to_end_saves_its_work_though_nobody_waits(start, tmp_path):
    process, _ = start(SAVES)
    until(lambda: (tmp_path / "log").read_text() == "up\n")
    end(process)
    process.stdin.close()
    assert status(process) == 138
    assert (tmp_path / "log").read_text() == "up\nsaved\n"


@pytest.mark.parametrize("prefix", ["", "timeout 600 "])  # timeout begins a process group
def test_what_a_shell_script_runs_may_save_its_work(start, tmp_path, prefix):
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "run.sh").write_text(f"{prefix}{sys.executable} -u {tmp_path}/train.py\necho not reached\n")
    process, _ = start("", command=["bash", str(tmp_path / "run.sh")])
    until(lambda: (tmp_path / "log").read_text() == "up\n")
    end(process)
    assert status(process) == -15
    assert (tmp_path / "log").read_text() == "up\nsaved\n"


def test_a_task_that_does_not_end_is_killed_after_its_grace(start, tmp_path):
    process, _ = start(DEAF, grace=0.3)
    until(lambda: (tmp_path / "log").read_text() == "up\n")
    end(process)
    assert status(process) == -9


def test_a_task_is_killed_when_its_actor_is_gone(start, tmp_path):
    process, _ = start(SAVES)
    until(lambda: (tmp_path / "log").read_text() == "up\n")
    process.stdin.close()
    assert status(process) == -9
    assert "saved" not in (tmp_path / "log").read_text()


def test_a_program_that_is_missing_is_named(start, tmp_path):
    _, event = start("", command=["no-such-program"])
    assert event == {"error": "no-such-program: No such file or directory"}
    _, event = start("", log="/proc/none/log")
    assert event == {"error": "/proc/none/log: No such file or directory"}
