"""What Slurm's commands answer, and what follows from it."""

from pathlib import Path

import pytest

from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.slurm import engine as slurm_module
from tfdist.engines.slurm.engine import Slurm
from tfdist.errors import ConfigError

SUBMITTED = Submission(Handle("slurm", "", "7"), "x", Path("/runs/x"), ("worker:0",), "tfdist submit slurm")


@pytest.fixture
def answers(monkeypatch):
    """Return a function that makes the answers of Slurm's commands those of a mapping."""

    def install(**texts):
        monkeypatch.setattr(slurm_module, "_slurm", lambda *words, **_: texts["_".join(words[:2])])

    return install


def job(tmp_path):
    return Job("x", command=("true",), counts={"worker": 1}, folder=tmp_path, made_by="tfdist submit slurm")


@pytest.mark.parametrize(
    ("answer", "handle"),
    [
        ("7\n", "slurm://here/7"),
        ("7;there\n", "slurm://there/7"),
        ("Welcome to the cluster\n--> Checking the quota: OK\n7\n", "slurm://here/7"),
    ],
)
def test_the_number_of_a_job_is_found_in_what_sbatch_prints(answers, tmp_path, answer, handle):
    answers(**{"sbatch_--parsable": answer, "scontrol_show": "ClusterName             = here\n"})
    assert str(Slurm().submit(job(tmp_path), {}).handle) == handle


def test_an_sbatch_that_prints_no_number_is_one_line(answers, tmp_path):
    answers(**{"sbatch_--parsable": "queued\n"})
    message = r"^sbatch --parsable: expected the number of the job, received 'queued"
    with pytest.raises(ConfigError, match=message):
        Slurm().submit(job(tmp_path), {})


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("   JobState=RUNNING Reason=None Dependency=(null)\n", (State.RUNNING, "RUNNING")),
        ("   JobState=PENDING Reason=Resources\n", (State.PENDING, "PENDING: Resources")),
        ("No jobs in the system\n", (State.UNKNOWN, r"scontrol show job: 'No jobs in the system\n'")),
    ],
)
def test_the_state_is_what_the_controller_says(answers, answer, state):
    answers(scontrol_show=answer)
    assert Slurm().state(SUBMITTED) == state
