"""The page about a run that `tfdist train` writes at its end, also where the run or the page fails."""

import pytest

from tfdist.cli.train import _page_written
from tfdist.errors import TaskLost
from tfdist.launcher.record_events import events_to_file, record
from tfdist.launcher.run_events import FILE, RunEnded
from tfdist.trainer.run_folder import RunFolder


def train_and_fail(folder):
    with _page_written(RunFolder.at(folder)), events_to_file(folder / FILE):
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
    with _page_written(RunFolder.at(tmp_path / "run")):
        pass
    assert not (tmp_path / "run").exists()
