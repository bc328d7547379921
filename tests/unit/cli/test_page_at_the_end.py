"""What is shown and written at the end of a run, also where the run or the page fails."""

import functools

import pytest
from rich.console import Console

from tfdist.cli import launch
from tfdist.cli._end_of_run import page_written, print_results
from tfdist.diagnostics.report.page import write_page
from tfdist.errors import TaskLost
from tfdist.launcher.record_events import events_to_file, record
from tfdist.launcher.run_events import FILE, EpochEnded, Progressed, RunEnded


def train_and_fail(folder):
    with page_written(folder, lambda: write_page([folder])), events_to_file(folder / FILE):
        record(RunEnded(seconds=1.0, problem="worker:1: was lost"))
        raise TaskLost("worker:1", "was lost")


def test_a_run_that_fails_has_a_page(tmp_path):
    with pytest.raises(TaskLost):
        train_and_fail(tmp_path)
    assert "failed: worker:1: was lost" in (tmp_path / "report.html").read_text()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path, capsys):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(TaskLost):
        train_and_fail(tmp_path)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tfdist: WARNING: there is no new page about the run: ")
    assert "Is a directory" in line


def test_a_mistake_before_the_run_leaves_no_page(tmp_path):
    with page_written(tmp_path / "run", lambda: write_page([tmp_path / "run"])):
        pass
    assert not (tmp_path / "run").exists()


ROWS = [
    ("test accuracy", "0.9635   (100 steps on mnist)"),
    ("time", "1 min 2 s"),
    ("SavedModel", "/" + "/".join(["a_long_folder"] * 8) + "/export/100"),
    ("nothing", ""),
]


def test_names_between_colons_are_no_emoji(capsys):
    print_results([("logs", "runs/lr:a:b/logs")], "ATTENTION: :x:")
    assert capsys.readouterr().out == "ATTENTION: :x:\nlogs           runs/lr:a:b/logs\n"


@pytest.mark.parametrize("columns", [80, 130])
def test_a_terminal_has_a_frame_in_which_long_paths_are_folded(monkeypatch, capsys, columns):
    made = functools.partial(Console, force_terminal=True, width=columns, color_system=None)
    monkeypatch.setattr("rich.console.Console", made)
    print_results(ROWS, "ATTENTION: other data")
    attention, *frame = capsys.readouterr().out.splitlines()
    assert attention == "ATTENTION: other data"
    assert (frame[0][:8], frame[-1][0]) == ("╭─ done ", "╰")
    assert {len(line) for line in frame} == {len(frame[0])}
    assert len(frame[0]) <= columns
    path = "".join(line.strip("│ ").removeprefix("SavedModel").strip() for line in frame[3:-1])
    assert path == ROWS[2][1]
    assert any("1 min 2 s" in line for line in frame[1:-1])


def test_a_file_has_a_line_for_each_row_however_long(capsys):
    print_results(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "test accuracy  0.9635   (100 steps on mnist)"
    assert lines[2:] == [f"SavedModel     {ROWS[2][1]}"]


def test_a_launch_ends_with_what_its_events_have(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "x"
    with page_written(folder, lambda: write_page([folder])), events_to_file(folder / FILE):
        record(Progressed(step=3, steps=3, examples_per_second=None, loss=0.5))
        logs = {"accuracy": 0.75, "loss": 0.25, "val_accuracy": 0.5, "val_loss": None}
        record(EpochEnded(epoch=0, epochs=1, logs=logs))
    launch._print_results(folder, 62.0)
    assert capsys.readouterr().out.splitlines() == [
        "result         loss 0.25, accuracy 0.75, val_accuracy 0.5, val_loss NaN or infinite",
        "time           1 min 2 s",
        "logs           runs/x/logs",
        "report         runs/x/report.html",
        "compare        tfdist report runs/x OTHER_RUN",
    ]
    (folder / FILE).unlink()
    launch._print_results(folder, 62.0)
    assert capsys.readouterr().out.startswith("time           1 min 2 s\nlogs ")
