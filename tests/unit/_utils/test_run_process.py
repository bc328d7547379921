"""Test that the end of a process is told in one line."""

import os
import sys

import pytest

from tfdist._utils.run_process import Ended, run_process


@pytest.mark.parametrize(
    ("code", "status", "problem"),
    [
        ("print('done')", 0, ""),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("raise SystemExit(7)", 7, "exit status 7"),
        ("import os; os.kill(os.getpid(), 4)", -4, "SIGILL ended the process"),
    ],
)
def test_the_problem_is_why_a_process_failed(code, status, problem):
    ended = run_process([sys.executable, "-c", code], seconds=60)

    assert ended == Ended(status, ended.output, problem)
    assert ended.output.strip() == (b"" if problem else b"done")


def test_a_process_that_takes_too_long_is_killed():
    words = [sys.executable, "-c", "import time; time.sleep(60)"]

    assert run_process(words, seconds=0.2) == Ended(1, b"", "not done within 0.2 s")


def test_a_process_has_the_environment_that_is_given():
    words = [sys.executable, "-c", "import os; print(os.environ['GIVEN'])"]
    environ = {**os.environ, "GIVEN": "this"}

    assert run_process(words, seconds=60, environ=environ).output.strip() == b"this"
