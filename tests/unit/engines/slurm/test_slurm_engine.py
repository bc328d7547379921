"""What Slurm's commands answer, and what follows from it."""

from dataclasses import replace
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


def test_the_script_decides_whatever_the_variables_of_the_shell_say(tmp_path, monkeypatch):
    (tmp_path / "sbatch").write_text("#!/bin/bash\nenv | grep '^S[BL]' > $0.env; echo 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "scontrol").write_text("#!/bin/bash\necho ClusterName = here\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    kept = {"SBATCH_PARTITION": "main", "SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "here"}
    of_the_script = ("OUTPUT", "JOB_NAME", "SIGNAL", "TIMELIMIT", "MEM_PER_CPU", "NO_REQUEUE")
    of_a_job = ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_JOB_ID")
    for name, value in {**kept, **{f"SBATCH_{name}": "1" for name in of_the_script}}.items():
        monkeypatch.setenv(name, value)
    for name in of_a_job:
        monkeypatch.setenv(name, "1")
    Slurm().submit(job(tmp_path), {"time": "60", "mem": "1G"})
    got = dict(line.split("=", 1) for line in (tmp_path / "sbatch.env").read_text().splitlines())
    assert got == kept


def test_an_sbatch_that_prints_no_number_is_one_line(answers, tmp_path):
    answers(**{"sbatch_--parsable": "queued\n"})
    message = r"^sbatch --parsable: expected the number of the job, received 'queued"
    with pytest.raises(ConfigError, match=message):
        Slurm().submit(job(tmp_path), {})


@pytest.fixture
def forgotten(monkeypatch, tmp_path):
    """Return a submission of a job that Slurm's controller has forgotten."""

    def answer(*words, **_):
        if words[0] == "scontrol":
            raise slurm_module._NoSuchJobError("slurm", "Invalid job id specified")
        return ""

    monkeypatch.setattr(slurm_module, "_slurm", answer)
    monkeypatch.setattr(Slurm, "_cluster_here", "")
    return Submission(Handle("slurm", "", "7"), "x", tmp_path / "x-7", ("worker:0",), "tfdist submit slurm")


def cancel_while(state, submission):
    """Cancel a job that Slurm's controller forgets afterwards."""
    text = "" if state == "strange" else f"   JobState={state} Reason=None\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm_module, "_slurm", lambda *_, **__: text)
        Slurm().cancel(submission)


def cancel_while_running(submission):
    cancel_while("RUNNING", submission)


def end(folder, status):
    folder.mkdir(exist_ok=True)
    (folder / "exit_status").write_text(f"{status}\n")


def test_a_failed_job_of_an_array_decides_when_the_controller_has_forgotten_it(forgotten, answers, tmp_path):
    assert Slurm().state(forgotten) == (State.UNKNOWN, "Slurm's controller has forgotten it")
    end(tmp_path / "x-7_0", 0)
    assert Slurm().state(forgotten) == (State.SUCCEEDED, "0: exit status 0")
    (tmp_path / "x-7_1").mkdir()  # killed at once
    end(tmp_path / "x-7_y-8", 3)  # of a job with another name
    assert Slurm().state(forgotten) == (State.UNKNOWN, "1: no exit status")
    end(tmp_path / "x-7_2", 3)
    assert Slurm().state(forgotten) == (State.FAILED, "2: exit status 3")
    answers(scontrol_show="   JobState=COMPLETED Reason=None\n")  # it still knows the last one
    assert Slurm().state(forgotten) == (State.FAILED, "2: exit status 3")


@pytest.mark.parametrize("status", [None, 0, 138])
def test_a_cancelled_job_stays_cancelled(forgotten, status):
    cancel_while_running(forgotten)
    wanted = State.CANCELLED
    if status is not None:
        end(forgotten.run_dir, status)
        wanted = State.SUCCEEDED if status == 0 else wanted
    assert Slurm().state(forgotten)[0] is wanted


@pytest.mark.parametrize(
    ("state", "when"),
    [("RUNNING", "while it ran"), ("PENDING", "before it began"), ("strange", "while it ran")],
)
def test_a_cancelled_job_without_an_end_has_begun_or_not(forgotten, state, when):
    (forgotten.run_dir / "logs").mkdir(parents=True)  # of the job whose run it continues
    cancel_while(state, forgotten)
    assert Slurm().state(forgotten) == (State.CANCELLED, when)


@pytest.mark.parametrize("answer", [None, "FAILED", "COMPLETED", "CANCELLED"])
def test_a_job_that_has_ended_is_not_cancelled(forgotten, answers, answer):
    if answer:
        answers(scontrol_show=f"   JobState={answer} Reason=None\n")
    with pytest.raises(ConfigError, match=r"^slurm:///7: has ended already$"):
        Slurm().cancel(forgotten)
    assert not forgotten.run_dir.exists()


def test_a_refused_submission_leaves_the_end_of_the_earlier_job(forgotten, monkeypatch, tmp_path):
    cancel_while_running(forgotten)
    end(forgotten.run_dir, 138)
    files = sorted(forgotten.run_dir.iterdir())

    def refuse(*words, **_):
        raise ConfigError("sbatch", "invalid partition specified: gpu")

    later = replace(job(tmp_path), run=forgotten.run_dir.name)
    with monkeypatch.context() as refusing:
        refusing.setattr(slurm_module, "_slurm", refuse)
        with pytest.raises(ConfigError, match="invalid partition"):
            Slurm().submit(later, {})
    assert Slurm().state(forgotten) == (State.CANCELLED, "exit status 138")
    assert sorted(forgotten.run_dir.iterdir()) == files


@pytest.mark.parametrize("status", [0, 1])
def test_the_end_of_a_job_says_nothing_about_the_job_that_continues_its_run(
    forgotten, monkeypatch, tmp_path, status
):
    cancel_while_running(forgotten)
    end(forgotten.run_dir, status)
    known = slurm_module._slurm
    monkeypatch.setattr(slurm_module, "_slurm", lambda *words, **_: known(*words) or "8\n")
    later = Slurm().submit(replace(job(tmp_path), run=forgotten.run_dir.name), {})
    assert later.run_dir == forgotten.run_dir
    assert Slurm().state(later)[0] is State.UNKNOWN


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
