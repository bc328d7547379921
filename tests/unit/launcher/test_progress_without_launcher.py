"""What a run in one process shows of its progress."""

import io
import json
import logging
import os

import pytest

from run_started import run_started
from tfdist.launcher import progress_text, progress_without_launcher
from tfdist.launcher.progress_without_launcher import showing_progress
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import Evaluated, PhaseBegun, Progressed

STARTED = run_started(strategy="one_device", parameters=12, steps=10, cluster={}, devices="1 CPU device")


class Terminal(io.StringIO):
    """A stream that looks like a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def fileno(self):
        return -1


def steps(*numbers):
    for step in numbers:
        record(Progressed(step=step, steps=10, examples_per_second=100.0, loss=0.5))


def test_a_terminal_has_a_bar_which_gives_way_to_lines_of_the_log(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(progress_without_launcher, "terminal_size", lambda _: (120, 24))
    monkeypatch.setenv("TERM", "xterm")
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        with showing_progress(stream, place="runs/x"):
            record(STARTED)
            steps(5)
            logging.getLogger("other").error("a line")
            record(Evaluated(step=5, results={"accuracy": 0.75}))
    finally:
        logging.getLogger().removeHandler(handler)
    *title, text = stream.getvalue().split("\n", 3)
    assert title == [
        "mnist_cnn (12 parameters) on digits",
        "one_device on 1 CPU device",
        "run directory runs/x",
    ]
    first, line, last = text.split("\n")[0], *text.split("\x1b[2K")[2:4]
    assert first.startswith("\r\x1b[2K━━━━━━━━━━━━──────────── step 5 of 10 (50 %), 100 examples/s, loss 0.5")
    assert line == "a line\n\r"
    assert "test accuracy 0.7500" in last
    assert stream.getvalue().endswith("\r\x1b[2K")
    assert handler.filters == []


def test_a_training_continues_after_its_terminal_was_closed(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    with open(slave, "w", closefd=False) as stream:
        with showing_progress(stream):
            steps(1)
            assert b"step 1 of 10" in os.read(master, 65536)
            os.close(master)
            record(STARTED)
            steps(2, 3)
        # The rest that nobody reads would be an error of close() too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), slave)
    os.close(slave)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch, caplog, term):
    monkeypatch.setenv("TERM", term)
    now = [0.0]
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now[0])
    stream = Terminal()
    with caplog.at_level(logging.INFO, "tfdist"), showing_progress(stream):
        for step in (1, 2):
            now[0] += 10
            steps(step)
    assert caplog.messages[-1].startswith("step 2 of 10 (20 %)")
    assert stream.getvalue() == ""


def test_a_file_gets_a_line_in_ten_seconds(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, "tfdist"), showing_progress(stream):
        for step in range(1, 10):
            now[0] += 3
            steps(step)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "step 4 of 10 (40 %)",
        "step 8 of 10 (80 %)",
    ]
    assert stream.getvalue() == ""


def test_json_is_every_event_a_line():
    stream = io.StringIO()
    with showing_progress(stream, json=True):
        record(PhaseBegun(phase="training"))
        steps(1)
    record(PhaseBegun(phase="after the block"))
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "phase_begun",
        "progressed",
    ]


def test_json_ends_with_its_reader_and_not_the_training():
    ends = os.pipe()
    stream = os.fdopen(ends[1], "w")
    os.close(ends[0])
    with showing_progress(stream, json=True):
        record(PhaseBegun(phase="training"))
        record(PhaseBegun(phase="evaluating"))
    with pytest.raises(BrokenPipeError):
        stream.close()
