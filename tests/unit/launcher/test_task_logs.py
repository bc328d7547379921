"""Which lines of the tasks a screen leaves to the log files."""

import pytest

from tfdist.launcher import task_logs
from tfdist.launcher.task_logs import NotesForLogs

INFO = "I0000 00:00:1795267459.73 299 port.cc:153] oneDNN custom operations are on.\n"
NO_GPU = "E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n"
ROWS = "tfdist: worker:0 serves at grpc://127.0.0.1:1\ntfdist: worker:0 has found the chief at a:2\n"
WARNING = "tfdist: MNIST is not on this disk\n"
OWN = "epoch 1 is done\n"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(task_logs, "own_gpus", list)


@pytest.mark.parametrize(
    ("is_live", "shown"), [(True, WARNING + OWN), (False, ROWS + WARNING + OWN)], ids=["terminal", "file"]
)
def test_what_is_for_nobody_is_left_out(is_live, shown):
    notes = NotesForLogs(is_live=is_live, verbosity=0)
    assert notes.without(INFO + NO_GPU + ROWS + WARNING + OWN, "worker:0") == shown


def test_an_error_of_cuda_is_shown_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(task_logs, "own_gpus", lambda: ["0"])
    assert NotesForLogs(is_live=True, verbosity=0).without(NO_GPU, "worker:0") == NO_GPU


def test_verbosity_shows_all():
    text = INFO + NO_GPU + ROWS
    assert NotesForLogs(is_live=True, verbosity=1).without(text, "worker:0") == text


def test_a_terminal_shows_a_warning_of_all_tasks_once_and_the_users_lines_always():
    notes = NotesForLogs(is_live=True, verbosity=0)
    assert notes.without(WARNING + OWN, "worker:0") == WARNING + OWN
    assert notes.without(WARNING + OWN, "worker:1") == OWN
    assert notes.without(WARNING, "worker:0") == WARNING  # it has happened again


def test_a_file_keeps_the_warnings_of_each_task():
    notes = NotesForLogs(is_live=False, verbosity=0)
    assert [notes.without(WARNING, name) for name in ("worker:0", "worker:1")] == [WARNING, WARNING]
