"""Which lines of the tasks a screen leaves to the log files."""

import pytest

from tfdist.launcher import screen_filter
from tfdist.launcher.screen_filter import ScreenFilter

INFO = "I0000 00:00:1795267459.73 299 port.cc:153] oneDNN custom operations are on.\n"
NO_GPU = "E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n"
ABORT = (
    "E0000 00:00:1.2 3 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE: Failed to"
    " send RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or this\n"
)
HEARTBEAT = (
    "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling"
    " /tensorflow.CoordinationService/Heartbeat:\n"
    ':UNKNOWN:Error received from peer  {grpc_message:"failed to connect to all addresses", grpc_status:14}\n'
)
ROWS = "tfdist: worker:0 serves at grpc://127.0.0.1:1\ntfdist: worker:0 has found the chief at a:2\n"
WARNING = "tfdist: MNIST is not on this disk\n"
OWN = "epoch 1 is done\n"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(screen_filter, "own_gpus", list)


@pytest.mark.parametrize(
    ("is_live", "shown"), [(True, WARNING + OWN), (False, ROWS + WARNING + OWN)], ids=["terminal", "file"]
)
def test_what_is_for_nobody_is_left_out(is_live, shown):
    notes = ScreenFilter(is_live=is_live, verbosity=0)
    text = INFO + NO_GPU + ROWS + WARNING + ABORT + HEARTBEAT + OWN
    assert notes.without(text, "worker:0") == shown


def test_an_error_of_another_call_is_shown():
    notes = ScreenFilter(is_live=False, verbosity=0)
    assert notes.without(ABORT + OWN + HEARTBEAT, "worker:1") == OWN + HEARTBEAT


def test_an_error_of_cuda_is_shown_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(screen_filter, "own_gpus", lambda: ["0"])
    assert ScreenFilter(is_live=True, verbosity=0).without(NO_GPU, "worker:0") == NO_GPU


def test_verbosity_shows_all():
    text = INFO + NO_GPU + ROWS
    assert ScreenFilter(is_live=True, verbosity=1).without(text, "worker:0") == text


def test_a_terminal_shows_a_warning_of_all_tasks_once_and_the_users_lines_always():
    notes = ScreenFilter(is_live=True, verbosity=0)
    assert notes.without(WARNING + OWN, "worker:0") == WARNING + OWN
    assert notes.without(WARNING + OWN, "worker:1") == OWN
    assert notes.without(WARNING, "worker:0") == WARNING  # it has happened again


def test_a_file_keeps_the_warnings_of_each_task():
    notes = ScreenFilter(is_live=False, verbosity=0)
    assert [notes.without(WARNING, name) for name in ("worker:0", "worker:1")] == [WARNING, WARNING]
