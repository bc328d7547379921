"""What `tfdist estimate` predicts, against what real runs of the same configs sent and needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import tfdist

CONFIGS = Path(__file__).parents[2] / "configs"
CLUSTER = f"--config={CONFIGS}/ps2w-sync.yaml"
DIGITS = "--set=data.name=digits"


def _estimated(*words):
    run = tfdist("estimate", *words, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_missing_config_is_one_line():
    run = tfdist("estimate")
    assert (run.returncode, run.stdout) == (2, "")
    assert (
        run.stderr
        == "tfdist: --config: is missing. Name a file: --config ps2w.yaml, which `tfdist configs ps2w` writes\n"
    )


def test_what_train_refuses_is_refused():
    run = tfdist("estimate", f"--config={CONFIGS}/mwms2w.yaml", "--set=communication.dtype=int8")
    assert (run.returncode, run.stdout) == (2, "")
    problem = "communication.dtype: needs implementation tcp, but the implementation is auto"
    assert run.stderr == f"tfdist: {problem}. Set tcp, or leave it out\n"


@pytest.mark.slow
def test_the_tables_name_all_tasks():
    run = tfdist("estimate", CLUSTER, DIGITS)
    assert run.returncode == 0, run.stderr
    for word in ("chief:0", "worker:0…1", "ps:0", "activations", "ms at 10 Gbit/s", "13.1 MB of variables"):
        assert word in run.stdout


@pytest.mark.slow
def test_a_cluster_sends_what_was_estimated(tmp_path):
    tasks = _estimated(CLUSTER, DIGITS)["tasks"]
    steps = ("--set=train.steps=40", "--set=evaluation.batches=2")
    run = tfdist("train", CLUSTER, DIGITS, *steps, f"--run_dir={tmp_path}")
    assert run.returncode == 0, run.stderr
    sent = json.loads((tmp_path / "report.json").read_text())["bytes_sent_per_step"]
    assert sent.keys() == tasks.keys()
    for task in ("worker:0", "worker:1", "ps:0"):
        # Beside the steps: the evaluation, the checkpoint and the export.
        assert tasks[task]["sent"] <= sent[task] < 1.2 * tasks[task]["sent"]
    assert tasks["chief:0"]["sent"] < sent["chief:0"] < 3 * tasks["chief:0"]["sent"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="maxrss has other units")
def test_a_process_needs_the_memory_that_was_estimated(tmp_path):
    words = [f"--config={CONFIGS}/local.yaml", DIGITS, "--set=data.batch_size=1024"]
    found = _estimated(*words)
    [task] = found["tasks"].values()
    expected = task["total"] + task["data"] + found["libraries"]

    steps = ("--set=train.steps=10", "--set=train.steps_per_execution=1", "--set=evaluation.batches=1")
    command = [sys.executable, "-m", "tfdist", "train", *words, *steps, f"--run_dir={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_maxrss * 1024 == pytest.approx(expected, rel=0.25)
