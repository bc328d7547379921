"""The chief's reports: read as written, never in the way, never into a file of somebody else's."""

import errno
import json
import math
import os
import select
import sys
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import nothing_left, run  # noqa: F401  # a fixture

from tfdist.launcher import progress_for_engines, progress_text, send_reports
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.record_events import record, report_progress
from tfdist.launcher.report_messages import (
    Joined,
    JoinedPieces,
    Silence,
    in_pieces,
    read_line,
    read_reports,
)
from tfdist.launcher.run_events import Progressed, RunStarted, TaskSpeed
from tfdist.launcher.send_reports import VARIABLE, address, open_pipe, report_joined, report_silent

COUNTS = st.integers(0, 2**63 - 1)


@pytest.fixture
def pipe(monkeypatch):
    reader, writer = open_pipe()
    monkeypatch.setenv(VARIABLE, address(writer))
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_report_arrives(pipe):
    report_progress(1, 10)
    report_progress(2, 10, examples_per_second=12.5, loss=math.inf)
    data = os.read(pipe[0], 4096)
    assert list(read_reports(data)) == [Progressed(1, 10), Progressed(2, 10, 12.5, math.inf)]
    assert json.loads(data.splitlines()[0]) == {
        "step": 1,
        "steps": 10,
        "examples_per_second": None,
        "loss": None,
        "accuracy": None,
    }


def test_an_engine_reads_the_last_report_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    monkeypatch.setenv(progress_for_engines.PROGRESS_FILE, str(path))
    monkeypatch.setattr(progress_for_engines, "_written_at", float("-inf"))
    monkeypatch.setattr(progress_for_engines.time, "monotonic", lambda: 100.0)
    report_progress(1, 10, loss=0.5)
    report_progress(2, 10)  # at once after the first: left out
    assert list(read_reports(path.read_bytes())) == [Progressed(1, 10, None, 0.5)]
    report_progress(10, 10)  # but never the last one
    assert list(read_reports(path.read_bytes())) == [Progressed(10, 10)]
    monkeypatch.setenv(progress_for_engines.PROGRESS_FILE, str(tmp_path / "no folder" / "progress.json"))
    report_progress(10, 10)  # is no error of the training
    assert [file.name for file in tmp_path.iterdir()] == ["progress.json"]


def test_an_engine_whose_user_sees_no_file_has_it_printed(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress_for_engines, "_lines", progress_text.ProgressLines())
    now[0] = 10.0
    report_progress(1, 10)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv(progress_for_engines.LOG_PROGRESS, "1")
    report_progress(1, 10, loss=0.5)
    now[0] = 12.0
    report_progress(2, 10)  # soon after the first: left out
    report_progress(10, 10)  # but not the last one
    report_progress(10, 10)  # at once after it: left out
    first, last = capsys.readouterr().out.splitlines()
    assert first == "step 1 of 10 (10 %), loss 0.5"
    assert last.startswith("step 10 of 10 (100 %)")
    now[0] = 30.0
    report_progress(1, 10)  # of another training, whose speed begins with it
    assert capsys.readouterr().out == "step 1 of 10 (10 %)\n"
    for error in (OSError(errno.ENOSPC, "no space"), ValueError("closed")):
        monkeypatch.setattr(sys, "stdout", Mock(write=Mock(side_effect=error)))
        now[0] += 30.0
        report_progress(2, 10)  # is no error of the training
        assert sys.stdout.write.called


@pytest.mark.parametrize("before", ["", "I1128 12:00:00 tfdist: ", "\r 5/80 - 1s 2ms/step - loss: 0.5000"])
@given(COUNTS.filter(bool), COUNTS.filter(bool) | st.none(), *[st.floats(1e-9, 1e9) | st.none()] * 3)
def test_what_is_printed_is_found_again(before, step, steps, speed, loss, accuracy):
    line = progress_text.describe_progress([(0.0, Progressed(step, steps, speed, loss, accuracy))])
    assert progress_text.find_progress(before + line) == line
    assert progress_text.find_progress("tfdist: step 20 of 80: test loss 0.5") is None


def test_the_launcher_is_told_that_a_task_has_joined(pipe):
    report_joined()
    data = os.read(pipe[0], 4096)
    assert list(read_reports(data + b'{"joined": 1}\n')) == [Joined(True)]


@given(
    COUNTS,
    COUNTS | st.none(),
    st.tuples(*[st.floats(allow_nan=False) | st.none()] * 3),
)
def test_every_report_is_read_as_it_was_written(step, steps, figures):
    report = Progressed(step, steps, *figures)
    line = json.dumps(msgspec.structs.asdict(report)).encode() + b"\n"
    assert list(read_reports(line)) == [report]


@given(
    st.binary()
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists)
    .map(json.dumps)
    .map(str.encode)
)
def test_anything_else_is_no_report(data):
    assert list(read_reports(data)) == []


@pytest.mark.parametrize("value", [None, -1, 2**63, "1", 1.5, [1]])
def test_a_step_is_a_count(value):
    assert list(read_reports(json.dumps({"step": value}).encode())) == []


@pytest.mark.parametrize(
    "values",
    [
        {"silent": None, "seconds": 1},
        {"silent": "ps:0"},
        {"silent": "ps:0", "seconds": -1},
        {"silent": "ps:0", "seconds": "1"},
        {"silent": "ps:0", "seconds": math.inf},
        {"silent": "ps:0", "seconds": 1, "step": 1},
    ],
)
def test_a_silence_is_a_task_and_seconds(values):
    assert list(read_reports(json.dumps(values).encode())) == []


def test_a_broken_report_hides_no_other():
    data = b'{"step": 1}\nnonsense\n{"silent": "ps:0", "seconds": 2.5}\n{"step": 3}\n'
    assert list(read_reports(data)) == [Progressed(1), Silence("ps:0", 2.5), Progressed(3)]


def test_a_full_pipe_makes_nobody_wait(pipe):
    for step in range(10_000):  # more than the pipe holds
        report_progress(step)
    data = os.read(pipe[0], 1 << 20)
    assert data.endswith(b"\n")  # a report is there whole or not at all
    assert 100 < len(data.splitlines()) < 10_000


TASKS = [f"worker:{index}" for index in range(1000)]
SPEED = TaskSpeed(step=7, milliseconds=dict.fromkeys(TASKS, 1000 / 3), shares=dict.fromkeys(TASKS, 1e-3 / 3))


def test_events_about_1000_tasks_arrive(pipe):
    started = RunStarted(
        strategy="parameter_server",
        model="mlp",
        parameters=1,
        step=0,
        steps=10,
        cluster={"worker": 1000},
        versions={},
        addresses={task: f"10.0.{index >> 8}.{index & 255}:12345" for index, task in enumerate(TASKS)},
    )
    record(started)
    report_progress(7)
    record(SPEED)
    pieces, data = JoinedPieces(), os.read(pipe[0], 1 << 20)
    events = [event for line in data.splitlines() if (event := read_line(pieces.add(line)))]
    assert events == [started, Progressed(7), SPEED]


STARTING = """
import json, os
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import RunStarted
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
    addresses = {f"worker:{index}": f"10.0.0.1:{index}" for index in range(1000)}
    facts = dict(parameters=1, step=0, steps=10, cluster={"worker": 1000}, versions={}, addresses=addresses)
    record(RunStarted(strategy="mirrored", model="resnet20", data="cifar10", **facts))
"""


@pytest.mark.usefixtures("nothing_left")
def test_the_launcher_shows_what_1000_tasks_train(tmp_path):
    assert "resnet20" in run(STARTING, tmp_path)[1]


@given(st.lists(st.text().map(str.encode).map(lambda word: word.replace(b"\n", b"") * 5000), max_size=3))
def test_pieces_are_joined_to_the_line_that_was_cut(lines):
    joined, cut = JoinedPieces(), JoinedPieces()
    for line in lines:
        line = b"{" + line + b"}"
        *pieces, last = in_pieces(line)
        assert all(len(piece) <= select.PIPE_BUF for piece in [*pieces, last])
        assert [joined.add(piece[:-1]) for piece in pieces] == [b""] * len(pieces)
        assert joined.add(last[:-1]) == line
        for piece in pieces:
            cut.add(piece[:-1])
    *pieces, last = in_pieces(b" " * 9000)
    for piece in pieces:
        assert cut.add(piece[:-1]) == b""
    assert cut.add(last[:-1]) == b" " * 9000  # and nothing of those lines whose last piece is missing


def test_events_that_a_slow_launcher_does_not_get_are_mentioned_once(pipe, monkeypatch, caplog):
    monkeypatch.setattr(send_reports, "_has_dropped_an_event", False)
    for step in range(10_000):
        report_progress(step)
    assert not caplog.records  # newer reports follow
    for _ in range(2):
        record(SPEED)
    [said] = caplog.messages
    assert said == "the launcher is slow or stopped: what it shows of this run lacks some events"


def test_without_a_launcher_nothing_happens(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert report_progress(1) is None
    assert report_silent("worker:1", 30) is False


def test_a_launcher_that_is_gone_is_no_matter(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setenv(VARIABLE, address(writer))
    os.close(reader)
    report_progress(1)
    assert report_silent("worker:1", 30) is False
    os.close(writer)
    report_progress(1)
    assert report_silent("worker:1", 30) is False


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


# What the launcher learns from its supervisor and from the chief comes in no order: whoever asks for a task's end
# asks until it has ended. The task stands still, as one does that is stopped or whose machine swaps.
SILENCING = """
import json, os, signal, time
from pathlib import Path
from tfdist.launcher import report_silent
index, here = json.loads(os.environ["TF_CONFIG"])["task"]["index"], Path({here!r})
if index:
    (here / "pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
while not ((here / "pid").exists() and (here / "pid").read_text()):
    time.sleep(0.01)
time.sleep({age})
for name in ("worker:7", "everybody"):
    report_silent(name, 0.1)
while report_silent("worker:1", {seconds}):
    time.sleep(0.05)
    {then}
"""


@pytest.mark.usefixtures("nothing_left")
def test_a_silent_task_is_killed_and_is_the_root_cause(tmp_path):
    code = SILENCING.format(here=str(tmp_path), age=0.3, seconds=0.204, then="")
    with pytest.raises(LaunchError, match=r"worker:1: exited with -9 \(SIGKILL, pid \d+\); log") as caught:
        run(code, tmp_path)
    assert caught.value.shown.count("[launcher] worker:1 silent for 0.2 s: killing it\n") == 1
    assert caught.value.exit_code == 138


@pytest.mark.usefixtures("nothing_left")
def test_who_has_not_lived_for_so_long_cannot_have_been_silent(tmp_path):
    code = SILENCING.format(here=str(tmp_path), age=0, seconds=600, then="break")
    report, shown = run(code, tmp_path, linger=0.2)
    assert "silent" not in shown
    # It was stopped; of the signals it takes SIGTERM all the same.
    assert [each.code for each in report.exits] == [0, -15]
