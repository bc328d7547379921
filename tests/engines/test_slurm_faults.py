"""What sites do to jobs: time limits, preemption, nodes that die, arrays; the work goes on, and to the same bits."""

import json
import os
import subprocess
import sys

import pytest
from submitted import state, wait_for

from commands import SECONDS, tfdist_in

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.again]
STEPS = 600
SECTIONS = """
checkpoint: {every: 50}
engine: {slurm: {sbatch: {nodes: 3, chdir: FOLDER}, setup: [export TF_CPP_MIN_LOG_LEVEL=2]}}
"""


class Job:
    """Submit train.yaml of a folder, and look after it."""

    def __init__(self, slurm, folder):
        self.slurm, self.folder = slurm, folder

    def tfdist(self, *words):
        words = tfdist_in(self.folder, *words)
        return self.slurm.run(*words, timeout=8 * SECONDS, XDG_STATE_HOME=str(self.folder / "state"))

    def submit(self, *options):
        self.handle = self.tfdist("submit", "slurm", "--config", "train.yaml", *options).strip()
        self.number = self.handle.rpartition("/")[2]
        self.run_dir = self.folder / "runs" / f"train-{self.number}"

    def wait_for(self, condition):
        wait_for(condition, lambda: self.tfdist("logs", self.handle)[-5000:], seconds=8 * SECONDS)

    def state(self):
        return state(self.tfdist, self.handle)

    def restarts(self):
        return self.slurm.run("scontrol", "show", "job", self.number).partition("Restarts=")[2].split()[0]

    def has_checkpoint(self, step):
        return (self.run_dir / "checkpoints" / str(step)).exists()

    def report(self):
        return json.loads((self.run_dir / "report.json").read_text())


@pytest.fixture
def job(slurm, config, tmp_path, cache, monkeypatch):
    """Return the job of the config, which is not yet submitted."""
    monkeypatch.setenv("TFDIST_CACHE_DIR", cache)
    (tmp_path / "train.yaml").write_text(config + SECTIONS.replace("FOLDER", str(tmp_path)))
    return Job(slurm, tmp_path)


@pytest.fixture(scope="module")
def loss(config, cache, tmp_path_factory):
    """Return the loss of a training of so many steps on this machine, that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "train.yaml").write_text(config)
    command = [sys.executable, "-m", "tfdist", "train", "--config", "train.yaml", "--run_dir", "run"]
    environ = {**os.environ, "TFDIST_CACHE_DIR": str(cache), "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([*command, f"--set=train.steps={STEPS}"], cwd=folder, env=environ, check=True)
    return json.loads((folder / "run" / "report.json").read_text())["test_loss"]


def test_a_time_limit_is_crossed_by_a_requeue(job, loss):
    limit = ["--sbatch=time=2", "--sbatch=signal=TERM@75"]
    job.submit(f"--set=train.steps={STEPS}", *limit)
    (job.folder / "train.yaml").unlink()  # both starts use the text that was submitted
    job.wait_for(lambda: job.restarts() != "0")
    job.slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    job.wait_for(lambda: job.state() == "succeeded")
    report = job.report()
    assert (report["steps"], report["starts"], report["steps_lost"]) == (STEPS, 2, 0)
    assert report["test_loss"] == loss
    # One requeue since the step that was saved before the limit; the checkpoint at the end renews them.
    restarts, saved = map(int, (job.run_dir / "restarts").read_text().split())
    assert (restarts, 0 < saved < STEPS) == (1, True)
    assert int((job.run_dir / "logs" / "saved_step").read_text()) == STEPS


def test_a_preempted_job_loses_no_step(job, loss):
    job.submit(f"--set=train.steps={STEPS}", "--sbatch=partition=low")
    job.wait_for(lambda: job.has_checkpoint(50))
    job.slurm.run("srun", "--partition=high", "--nodes=3", "--exclusive", "sleep", "1", timeout=8 * SECONDS)
    job.wait_for(lambda: job.state() == "succeeded")
    assert int(job.restarts()) >= 1
    report = job.report()
    assert (report["steps"], report["starts"], report["steps_lost"]) == (STEPS, 2, 0)
    assert report["test_loss"] == loss


def test_a_node_that_dies_costs_the_steps_after_the_last_checkpoint(job, loss):
    job.submit(f"--set=train.steps={STEPS}")
    job.wait_for(lambda: job.has_checkpoint(50))
    job.slurm.machines.kill("node3")
    job.wait_for(lambda: job.restarts() != "0")
    job.slurm.start_node_again("node3")
    job.wait_for(lambda: job.state() == "succeeded")
    report = job.report()
    assert (report["steps"], report["starts"]) == (STEPS, 2)
    assert report["test_loss"] == loss


def test_the_jobs_of_an_array_have_folders_and_logs_of_their_own(job, local_loss):
    job.submit("--sbatch=array=0-1")
    followed = job.tfdist("logs", job.handle, "--follow")
    assert job.state() == "succeeded", followed[-5000:]
    for index in "0", "1":
        run_dir = job.run_dir.with_name(f"{job.run_dir.name}_{index}")
        assert json.loads((run_dir / "report.json").read_text())["test_loss"] == local_loss
        assert f"{index}/worker:1: " in followed
