"""`tfdist submit ray` and the commands that take its handle, on a real Ray of three nodes."""

import json
import sys

import pytest
from submitted import state, until, wait_for

from commands import tfdist_in

pytestmark = [pytest.mark.engines, pytest.mark.again]
SECONDS = 300

SCRIPT = """
import os, sys, time
from tfdist import ClusterConfig

cluster = ClusterConfig.from_environment()
print("I am", cluster.task, "at", cluster.address(cluster.task), flush=True)
print("secret of", len(os.environ["TFDIST_SECRET"]), "threads", os.environ["TF_NUM_INTRAOP_THREADS"], flush=True)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def tfdist(ray, tmp_path):
    """Return a function that runs a command of tfdist's where users log in."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*words, **options):
        return ray.run(*tfdist_in(tmp_path, *words), XDG_STATE_HOME=str(tmp_path / "state"), **options)

    return run


def submit(tfdist, *options, words=("0",), sizes=("--workers", "2", "--ps", "1")):
    script = ["--", sys.executable, "script.py", *words]
    return tfdist("submit", "ray", *sizes, *options, *script).strip()


def test_a_config_trains_to_the_export_with_the_loss_of_this_machine(tfdist, tmp_path, config, local_loss):
    (tmp_path / "train.yaml").write_text(config)
    handle = tfdist("submit", "ray", "--config", "train.yaml", "--option=placement=SPREAD").strip()
    assert handle.startswith("ray://10.77.0.1:8265/train-")
    followed = tfdist("logs", handle, "--follow")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    assert "chief:0: tfdist: read the cluster from TF_CONFIG: 1 chief + 2 worker + 1 ps" in followed
    assert "job: tfdist: 4 tasks on 3 nodes: chief:0 at 10.77.0." in followed
    [run] = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["starts"]) == (10, 1)
    assert report["test_loss"] == local_loss
    assert (run / "export" / "10" / "saved_model.pb").exists()
    assert handle in tfdist("list")


def test_a_script_is_every_task_of_the_cluster(tfdist):
    handle = submit(tfdist, "--option=working_dir=.", "--option=placement=SPREAD", "--option=ps:CPU=2")
    followed = tfdist("logs", handle, "--follow")
    assert state(tfdist, handle) == "succeeded", followed
    lines = [line.partition(": ")[2].split() for line in followed.splitlines() if ": I am" in line]
    assert {words[2] for words in lines} == {"chief:0", "ps:0", "worker:0", "worker:1"}
    assert len({words[4].partition(":")[0] for words in lines}) == 3  # nodes
    [line, secret] = tfdist("logs", handle, "--task", "ps:0").splitlines()
    assert line.startswith("I am ps:0 at 10.77.0.")
    assert secret == "secret of 64 threads 2"


def test_a_job_that_fails_says_why(tfdist):
    handle = submit(tfdist, "--option=working_dir=.", words=("3",), sizes=("--workers", "1"))
    until("failed", tfdist, handle, seconds=SECONDS)
    assert "failed with exit code 1" in tfdist("status", handle)
    text = tfdist("logs", handle)
    assert "worker:0: secret of 64" in text


def test_a_cancelled_job_saves_its_work(tfdist, tmp_path, config):
    (tmp_path / "train.yaml").write_text(config)
    words = ["submit", "ray", "--config", "train.yaml", "--set", "train.steps=5000"]
    handle = tfdist(*words, "--option=submission_id=mine").strip()
    wait_for(
        lambda: "step 1" in tfdist("logs", handle, "--task", "chief:0"),
        lambda: tfdist("logs", handle),
        seconds=SECONDS,
    )
    tfdist("cancel", handle)
    until("cancelled", tfdist, handle, seconds=SECONDS)
    log = tmp_path / "runs" / "mine" / "logs" / "chief-0.log"
    saved = "a task was told to end; all is saved at step"
    wait_for(lambda: saved in log.read_text(), log.read_text, seconds=SECONDS)


def test_a_cluster_that_does_not_answer_is_named_in_one_line(tfdist):
    address = "http://10.77.0.254:1"
    words = ["submit", "ray", f"--option=address={address}", "--", "true"]
    [line] = tfdist(*words, ends_with=2).splitlines()
    assert line.startswith(
        f"tfdist: ray at {address}: Failed to connect to Ray at address: {address}. Name the head's"
    )
