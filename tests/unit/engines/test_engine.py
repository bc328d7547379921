"""Handles, engines of other packages, and the record of what was submitted."""

import pytest

from tfdist.engines import registry, submissions
from tfdist.engines.engine import Handle, State
from tfdist.engines.registry import find_engine
from tfdist.engines.submissions import Submission, find_submission, state_of
from tfdist.errors import ConfigError


class Queue:
    name = "queue"

    def state(self, handle):
        return State.UNKNOWN, "forgotten"


@pytest.fixture
def queue(monkeypatch):
    """Install a package with an engine of its own."""

    class Point:
        name = "queue"

        def load(self):
            return Queue

    class Points(list):
        names = frozenset({"queue"})

    monkeypatch.setattr(registry, "entry_points", lambda **_: Points([Point()]))


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Return a job that was submitted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    record = Submission(
        handle="queue://here/7",
        name="x",
        run_dir=str(tmp_path / "run"),
        tasks=("chief:0", "worker:0"),
        made_by="tfdist submit queue",
    )
    record.save()
    return record


@pytest.mark.parametrize(
    "text", ["", "7", "slurm:/a/7", "slurm://a", "slurm://a/b/7", "Slurm://a/7", "s://a/ 7"]
)
def test_what_is_no_handle_is_refused(text):
    with pytest.raises(ConfigError, match="handle: expected one such as slurm://cluster/123"):
        Handle.parse(text)


def test_a_handle_is_read_as_it_is_written():
    assert str(Handle.parse("slurm://a/12_3")) == "slurm://a/12_3"
    assert Handle.parse("slurm:///7") == Handle("slurm", "", "7")


def test_engines_are_ours_and_those_of_other_packages(queue):
    assert find_engine("slurm").name == "slurm"
    assert isinstance(find_engine("queue"), Queue)
    assert registry.engine_names() == ["queue", "slurm"]


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match=r"engine: there is no 'slrum'\. Did you mean 'slurm'"):
        find_engine("slrum")


def test_what_was_submitted_is_found_again(submitted):
    assert list(submissions.submissions()) == [submitted]
    assert find_submission(Handle.parse("queue://here/7")) == submitted
    with pytest.raises(ConfigError, match="queue://here/8: was not submitted by this user on this machine"):
        find_submission(Handle.parse("queue://here/8"))


def test_the_log_of_a_task_is_that_of_its_rank(submitted, tmp_path):
    assert submitted.log("worker:0") == tmp_path / "run" / "logs" / "rank-1.log"
    with pytest.raises(ConfigError, match=r"--task: expected one of chief:0, worker:0, received ps:0"):
        submitted.log("ps:0")


def test_a_job_that_the_engine_has_forgotten_tells_its_exit_status(submitted, queue, tmp_path):
    assert state_of(submitted) == (State.UNKNOWN, "forgotten")
    (tmp_path / "run").mkdir()
    for status, state in {"0": State.SUCCEEDED, "2": State.FAILED}.items():
        (tmp_path / "run" / "exit_status").write_text(f"{status}\n")
        assert state_of(submitted) == (state, f"exit status {status}")
