"""Handles, engines of other packages, and the record of what was submitted."""

import errno
import os
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tfdist.engines import find_engine as engines
from tfdist.engines import log_files_and_exit_status, submitted_jobs
from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.log_files_and_exit_status import (
    last_progress,
    lines_of,
    log_path,
    state_of_array,
    state_of_exit_status,
)
from tfdist.engines.slurm.engine import Slurm
from tfdist.engines.submitted_jobs import find_submission, record
from tfdist.errors import ConfigError, StorageError


class Queue(Slurm):
    name = "queue"


class NoEngine:
    render = submit = print


def install(monkeypatch, value):
    """Install a package with an engine of its own."""
    point = EntryPoint("queue", value, engines.ENTRY_POINTS)
    monkeypatch.setattr(engines, "entry_points", lambda **_: EntryPoints([point]))


@pytest.fixture
def queue(monkeypatch):
    """Install a package with an engine of its own."""
    install(monkeypatch, f"{__name__}:Queue")


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Return a job that was submitted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    submission = Submission(
        handle=Handle("queue", "here", "7"),
        name="x",
        run_dir=tmp_path / "run",
        tasks=("chief:0", "worker:0"),
        made_by="tfdist submit queue",
    )
    record(submission)
    return submission


@pytest.mark.parametrize(
    "text", ["", "7", "slurm:/a/7", "slurm://a", "slurm://a/b/7", "Slurm://a/7", "s://a/ 7"]
)
def test_what_is_no_handle_is_refused(text):
    with pytest.raises(ConfigError, match="handle: expected one such as slurm://cluster/123"):
        Handle.parse(text)


def test_a_handle_is_read_as_it_is_written():
    assert str(Handle.parse("slurm://a/12_3")) == "slurm://a/12_3"
    assert Handle.parse("slurm:///7") == Handle("slurm", "", "7")
    assert Handle.parse("my-queue.v2://a/7").engine == "my-queue.v2"


def test_engines_are_ours_and_those_of_other_packages(queue):
    assert find_engine("slurm").name == "slurm"
    assert isinstance(find_engine("queue"), Queue)
    assert {"queue", "slurm"} < set(engines.engine_names())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no_such_module:Queue", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        (
            f"{__name__}:Quue",
            f"cannot be loaded: AttributeError: module '{__name__}' has no attribute 'Quue'",
        ),
        (__name__, "cannot be loaded: TypeError: 'module' object is not callable"),
        (f"{__name__}:NoEngine", "has no method state"),
    ],
)
def test_a_plug_in_that_is_no_engine_is_one_line(monkeypatch, value, problem):
    install(monkeypatch, value)
    with pytest.raises(ConfigError) as caught:
        find_engine("queue")
    assert str(caught.value) == f"engine queue: {problem}. Mend or remove the package that names {value}"


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match=r"engine: there is no 'slrum'\. Did you mean 'slurm'"):
        find_engine("slrum")


def test_what_was_submitted_is_found_again(submitted):
    assert submitted_jobs.submissions() == ([submitted], [])
    assert find_submission(Handle.parse("queue://here/7")) == submitted
    with pytest.raises(ConfigError, match="queue://here/8: was not submitted by this user on this machine"):
        find_submission(Handle.parse("queue://here/8"))


def test_a_record_of_an_earlier_version_becomes_private_when_it_is_read(submitted, tmp_path):
    [path] = tmp_path.rglob("*.json")
    path.chmod(0o644)
    assert submitted_jobs.submissions() == ([submitted], [])
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_log_of_a_task_is_that_of_its_rank(submitted):
    assert list(lines_of(submitted, submitted.tasks, None)) == []
    for rank, text in enumerate(("one\ntwo", "three\n")):
        path = log_path(submitted.run_dir, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wanted = [("chief:0", "one"), ("chief:0", "two"), ("worker:0", "three")]
    assert list(lines_of(submitted, submitted.tasks, None)) == wanted
    assert list(lines_of(submitted, ("worker:0",), None)) == wanted[2:]


def test_a_log_that_cannot_be_read_ends_the_command_after_the_lines_of_the_others(submitted):
    log_path(submitted.run_dir, 0).mkdir(parents=True)
    log_path(submitted.run_dir, 1).write_text("one\n")
    printed = []
    with pytest.raises(StorageError, match=r"^logs of chief:0: .*rank-0\.log: cannot be read: Is a dir"):
        printed.extend(lines_of(submitted, submitted.tasks, lambda: True))
    assert printed == [("worker:0", "one")]


def test_the_jobs_of_an_array_have_folders_of_their_own(submitted):
    for index in "0", "1":
        path = log_path(submitted.run_dir.with_name(f"run_{index}"), 1)
        path.parent.mkdir(parents=True)
        path.write_text(f"I am {index}\n")
    wanted = [("0/worker:0", "I am 0"), ("1/worker:0", "I am 1")]
    assert list(lines_of(submitted, submitted.tasks, None)) == wanted


def test_a_line_is_followed_when_it_is_whole(submitted):
    path = log_path(submitted.run_dir, 1)
    path.parent.mkdir(parents=True)
    path.write_text("one\ntw")

    def is_over():
        path.write_text("one\ntwo\nthr")
        return True

    followed = lines_of(submitted, ("worker:0",), is_over)
    assert [line for _, line in followed] == ["one", "two", "thr"]


def test_a_log_is_read_in_pieces(submitted, monkeypatch):
    monkeypatch.setattr(log_files_and_exit_status, "_BYTES_OF_A_PIECE", 4)
    path = log_path(submitted.run_dir, 1)
    path.parent.mkdir(parents=True)
    texts = ["", "one", "", "é" * 9, "two\r", "of eight", "", "last"]
    path.write_bytes("\n".join(texts).encode())
    lines = [line for _, line in lines_of(submitted, ("worker:0",), None)]
    assert lines == [text.rstrip("\r") for text in texts]
    rounds = iter([False, True])
    lines = [line for _, line in lines_of(submitted, ("worker:0",), lambda: next(rounds))]
    assert lines == [text.rstrip("\r") for text in texts]


def test_a_run_that_cannot_be_read_is_one_line(submitted, tmp_path, monkeypatch):
    (tmp_path / "run").symlink_to(tmp_path / "run")  # root may read every folder
    assert last_progress(submitted) is None
    with pytest.raises(StorageError, match=r"run/exit_status: cannot be read: Too many levels of symbolic"):
        state_of_exit_status(submitted)
    monkeypatch.setattr(Path, "glob", denied)
    with pytest.raises(StorageError, match=f"^{tmp_path}: cannot be read: Permission denied$"):
        state_of_array(submitted)


def denied(*_):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_job_that_has_ended_tells_its_exit_status(submitted, tmp_path):
    assert state_of_exit_status(submitted) is None
    (tmp_path / "run").mkdir()
    for status, state in {"0": State.SUCCEEDED, "2": State.FAILED}.items():
        (tmp_path / "run" / "exit_status").write_text(f"{status}\n")
        assert state_of_exit_status(submitted) == (state, f"exit status {status}")
