"""The chief's reports: read as written, never in the way, never into a file of somebody else's."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import nothing_left, run  # noqa: F401  # a fixture

from tfdist.launcher import report_progress
from tfdist.launcher.progress import VARIABLE, Progress, address, last_report

COUNTS = st.integers(0, 2**63 - 1)


@pytest.fixture
def pipe(monkeypatch):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    monkeypatch.setenv(VARIABLE, address(writer))
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_report_arrives(pipe):
    report_progress(1, 10)
    report_progress(2, 10, examples_per_second=12.5, loss=math.inf)
    data = os.read(pipe[0], 4096)
    assert last_report(data) == Progress(2, 10, 12.5, math.inf)
    assert json.loads(data.splitlines()[0]) == {
        "step": 1,
        "steps": 10,
        "examples_per_second": None,
        "loss": None,
    }


@given(
    COUNTS, COUNTS | st.none(), st.floats(allow_nan=False) | st.none(), st.floats(allow_nan=False) | st.none()
)
def test_every_report_is_read_as_it_was_written(step, steps, speed, loss):
    report = Progress(step, steps, speed, loss)
    assert last_report(json.dumps(report._asdict()).encode() + b"\n") == report


@given(
    st.binary()
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists)
    .map(json.dumps)
    .map(str.encode)
)
def test_anything_else_is_no_report(data):
    assert last_report(data) is None


@pytest.mark.parametrize("value", [None, -1, 2**63, "1", 1.5, [1]])
def test_a_step_is_a_count(value):
    assert last_report(json.dumps({"step": value}).encode()) is None


def test_a_full_pipe_makes_nobody_wait(pipe):
    for step in range(5_000):  # more than a pipe holds
        report_progress(step)
    data = os.read(pipe[0], 1 << 20)
    assert data.endswith(b"\n")  # a report is there whole or not at all
    assert 100 < len(data.splitlines()) < 5_000


def test_without_a_launcher_nothing_happens(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert report_progress(1) is None


def test_a_launcher_that_is_gone_is_no_matter(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setenv(VARIABLE, address(writer))
    os.close(reader)
    report_progress(1)
    os.close(writer)
    report_progress(1)


def test_a_file_under_the_same_number_is_not_written_to(pipe, tmp_path, monkeypatch):
    inode = os.fstat(pipe[1]).st_ino
    with open(tmp_path / "records", "wb") as file:
        monkeypatch.setenv(VARIABLE, f"{file.fileno()}:{inode}")
        report_progress(1)
        monkeypatch.setenv(VARIABLE, f"{file.fileno()}:{os.fstat(file.fileno()).st_ino}")
        report_progress(1)
    assert (tmp_path / "records").read_bytes() == b""


@pytest.mark.usefixtures("nothing_left")
def test_only_the_chief_is_asked(tmp_path):
    run(f"import os; print({VARIABLE!r} in os.environ)", tmp_path)
    assert [(tmp_path / f"logs/worker-{i}.log").read_text() for i in range(2)] == ["True\n", "False\n"]
