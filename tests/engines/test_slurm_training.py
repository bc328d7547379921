"""Train under Slurm by the script of docs/cluster.md: to the export, and requeued by itself after a signal."""

import json
import re
import sys
from pathlib import Path

import pytest
from submitted import wait_for

from commands import SECONDS

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.again]  # test_slurm_submit.py trains too
PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
CONFIG = """
cluster: {{worker: 2, ps: 1}}
strategy: {{name: parameter_server_sync}}
data: {{name: digits, batch_size: 64}}
model: {{name: mnist_cnn}}
train: {{steps: {steps}, seed: 0}}
checkpoint: {{every: 50}}
"""


@pytest.fixture
def job(slurm, tmp_path, cache):
    """Return a function that submits the page's script for so many steps, and returns the number of the job."""

    def submit(steps):
        (tmp_path / "train.yaml").write_text(CONFIG.format(steps=steps))
        [script] = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
        script = script.replace("--nodes=2", "--nodes=3").replace("srun ", "srun --label ")
        (tmp_path / "job.sh").write_text(script.replace("python", sys.executable))
        variables = {"TFDIST_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        options = ["--parsable", "--chdir", tmp_path, "--output", tmp_path / "output"]
        return slurm.run("sbatch", *options, tmp_path / "job.sh", **variables).strip()

    return submit


def state_of(slurm, number):
    return dict(re.findall(r"(\w+)=(\S*)", slurm.run("scontrol", "show", "job", number)))


def test_the_script_of_the_page_trains_to_the_export(slurm, job, tmp_path):
    number = job(steps=20)
    output = tmp_path / "output"
    wait_for(
        lambda: state_of(slurm, number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
        lambda: output.read_text()[-3000:],
        seconds=SECONDS,
    )
    text = output.read_text()
    assert state_of(slurm, number)["JobState"] == "COMPLETED", text[-3000:]
    assert (
        "read the cluster from Slurm's SLURM_STEP_NODELIST: 1 chief + 2 worker + 1 ps; this is chief:0"
        in text
    )
    report = json.loads((tmp_path / "runs" / number / "report.json").read_text())
    assert (report["steps"], report["starts"]) == (20, 1)
    assert (tmp_path / "runs" / number / "export" / "20" / "saved_model.pb").exists()


def test_a_job_that_is_told_to_end_is_requeued_and_loses_no_step(slurm, job, tmp_path):
    number, output = job(steps=1000), tmp_path / "output"
    checkpoints = tmp_path / "runs" / number / "checkpoints"
    wait_for(
        (checkpoints / "50").exists, lambda: f"no checkpoint: {state_of(slurm, number)}", seconds=SECONDS
    )
    slurm.run("scancel", "--signal=USR1", number)  # as --signal=USR1@90 does
    wait_for(lambda: state_of(slurm, number)["Restarts"] == "1", output.read_text, seconds=SECONDS)
    assert "SIGUSR1: a task was told to end; all is saved at step" in output.read_text()
    wait_for(
        lambda: state_of(slurm, number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
        lambda: output.read_text()[-3000:],
        seconds=SECONDS,
    )
    text = output.read_text()
    assert state_of(slurm, number)["JobState"] == "COMPLETED", text[-3000:]
    report = json.loads((tmp_path / "runs" / number / "report.json").read_text())
    assert (report["steps"], report["starts"], report["steps_lost"]) == (1000, 2, 0)
