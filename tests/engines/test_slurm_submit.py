"""`tfdist submit slurm` and the commands that take its handle, on a real Slurm."""

import json
import os
import re
import signal
import sys
import time

import pytest
from submitted import state, until, wait_for

import proc
from commands import tfdist_in

pytestmark = pytest.mark.engines
SECONDS = 600

SCRIPT = """
import os, sys, time
from tfdist import ClusterConfig

cluster = ClusterConfig.from_environment()
print("I am", cluster.task, "on", os.environ["SLURMD_NODENAME"], "of", cluster.address(cluster.task), flush=True)
print("secret of", len(os.environ["TFDIST_SECRET"]), flush=True)
print("threads:", os.environ.get("OMP_NUM_THREADS"), os.environ.get("TF_NUM_INTRAOP_THREADS"), flush=True)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def tfdist(slurm, tmp_path):
    """Return a function that runs a command of tfdist's where users log in."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*words):
        words = tfdist_in(tmp_path, *words)
        return slurm.run(*words, timeout=800, XDG_STATE_HOME=str(tmp_path / "state"))

    return run


def submit(tfdist, *options, words=("0",)):
    script = ["--", sys.executable, "script.py", *words]
    return tfdist("submit", "slurm", "--workers", "2", "--ps", "1", *options, *script).strip()


def test_a_script_is_every_task_of_the_cluster(tfdist, tmp_path):
    handle = submit(tfdist, "--sbatch", "nodes=3", "--sbatch", "cpus-per-task=2")
    assert handle.startswith("slurm://tfdist/")
    followed = tfdist("logs", handle, "--follow").splitlines()
    assert state(tfdist, handle) == "succeeded"
    lines = [line.partition(": ")[2].split() for line in followed if ": I am" in line]
    assert {words[2] for words in lines} == {"chief:0", "ps:0", "worker:0", "worker:1"}
    assert all(words[4] == words[6].partition(":")[0] for words in lines)  # the node, and the task's address
    [line, secret, threads] = tfdist("logs", handle, "--task", "worker:1").splitlines()
    assert line.startswith("I am worker:1 on ")
    assert secret == "secret of 64"
    assert threads == "threads: 2 2"
    number = handle.rpartition("/")[2]
    assert (tmp_path / "runs" / f"script-{number}" / "exit_status").read_text() == "0\n"
    assert handle in tfdist("list")


def test_options_of_a_role_make_a_heterogeneous_job(tfdist):
    options = [
        "--sbatch=chief:nodelist=node3",
        "--sbatch=ps:nodelist=node3",
        "--sbatch=worker:nodelist=node1,node2",
        "--sbatch=worker:cpus-per-task=2",
    ]
    handle = submit(tfdist, *options)
    followed = tfdist("logs", handle, "--follow")
    nodes = {line.split()[3]: line.split()[5] for line in followed.splitlines() if ": I am" in line}
    assert (nodes["chief:0"], nodes["ps:0"]) == ("node3", "node3")
    assert {nodes["worker:0"], nodes["worker:1"]} == {"node1", "node2"}
    threads = {line.partition(": threads: ")[::2] for line in followed.splitlines() if ": threads" in line}
    assert threads == {("chief:0", "1 1"), ("ps:0", "1 1"), ("worker:0", "2 2"), ("worker:1", "2 2")}
    assert state(tfdist, handle) == "succeeded"


def test_a_job_that_fails_says_so_and_is_not_started_again(tfdist):
    handle = submit(tfdist, words=("3",))
    until("failed", tfdist, handle, seconds=SECONDS)
    assert "NonZeroExitCode" in tfdist("status", handle)


def submit_ends(tfdist, ends, *options):
    """Submit tasks (chief:0, ps:0, worker:0, worker:1), on three nodes, that end like this."""
    cases = "".join(f"{rank}) {end};; " for rank, end in enumerate(ends))
    script = ["--", "bash", "-c", f"echo up; case $SLURM_PROCID in {cases} esac"]
    return tfdist("submit", "slurm", "--workers=2", "--ps=1", "--sbatch=nodes=3", *options, *script).strip()


def cancel_once_started_again(tfdist, slurm, handle):
    """Wait until Slurm has requeued a job, and cancel it."""
    wait_for(lambda: restarts_of(slurm, handle) != "0", lambda: tfdist("status", handle), seconds=SECONDS)
    tfdist("cancel", handle)
    until("cancelled", tfdist, handle, seconds=SECONDS)


def restarts_of(slurm, handle):
    return re.search(r"Restarts=(\d+)", slurm.run("scontrol", "show", "job", handle.rpartition("/")[2]))[1]


ASKS = "sleep 1; exit 138"  # notices the loss of another one


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(["exit 138"] * 4, marks=pytest.mark.again),
        [ASKS, ASKS, "kill -KILL $$", ASKS],
        pytest.param([ASKS, "kill -SEGV $$", ASKS, ASKS], marks=pytest.mark.again),
        pytest.param([ASKS, ASKS, ASKS, "kill -KILL $PPID $$"], marks=pytest.mark.again),
    ],
)
def test_a_job_that_lost_a_task_is_started_again_while_restarts_are_left(tfdist, slurm, ends):
    handle = submit_ends(tfdist, ends)
    until("pending", tfdist, handle, seconds=SECONDS)
    cancel_once_started_again(tfdist, slurm, handle)


def test_a_job_one_of_whose_tasks_would_fail_again_is_not_started_again(tfdist, slurm):
    handle = submit_ends(tfdist, [ASKS, ASKS, "exit 2", ASKS])
    until("failed", tfdist, handle, seconds=SECONDS)
    assert restarts_of(slurm, handle) == "0"
    assert "ExitCode=2:0" in slurm.run("scontrol", "show", "job", handle.rpartition("/")[2])


def test_slurms_sigterm_before_a_task_handles_it_is_a_preemption(tfdist, slurm):
    handle = submit_ends(tfdist, ["sleep 600"] * 4)
    wait_for(
        lambda: tfdist("logs", handle).count("up") == 4, lambda: tfdist("status", handle), seconds=SECONDS
    )
    slurm.run("scancel", "--signal=TERM", handle.rpartition("/")[2])
    cancel_once_started_again(tfdist, slurm, handle)


def test_a_job_whose_chief_outlives_a_worker_that_comes_and_goes_has_succeeded(tfdist, slurm):
    handle = submit_ends(tfdist, ["sleep 4", "sleep 4", "kill -KILL $$", "sleep 4"], "--alone=worker")
    until("succeeded", tfdist, handle, seconds=SECONDS)
    assert tfdist("logs", handle, "--task=worker:0").splitlines().count("up") == 4
    assert restarts_of(slurm, handle) == "0"


def test_a_job_of_a_cluster_that_is_not_known_here_is_refused(tfdist, tmp_path):
    handle = submit(tfdist)
    other = handle.replace("slurm://tfdist/", "slurm://beta/")
    folder = tmp_path / "state" / "tfdist" / "submitted"
    [record] = folder.iterdir()
    (folder / record.name.replace("tfdist", "beta")).write_text(record.read_text().replace(handle, other))
    with pytest.raises(AssertionError, match=r"tfdist: .*beta"):
        tfdist("cancel", other)
    until("succeeded", tfdist, handle, seconds=SECONDS)


def test_a_cancelled_job_is_not_started_again_by_tasks_that_ask_for_it(tfdist, slurm):
    save = 'trap "exit 138" TERM; while true; do sleep 0.1; done'
    handle = submit_ends(tfdist, [save] * 4)
    until("running", tfdist, handle, seconds=SECONDS)
    tfdist("cancel", handle)
    until("cancelled", tfdist, handle, seconds=SECONDS)
    time.sleep(5)
    assert (state(tfdist, handle), restarts_of(slurm, handle)) == ("cancelled", "0")


SAVES = """
import signal, sys, time

def save(*_):
    time.sleep(2)
    print("saved", flush=True)
    sys.exit(138)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""


def test_what_a_shell_script_runs_saves_its_work(tfdist, tmp_path):
    (tmp_path / "save.py").write_text(SAVES)
    (tmp_path / "run.sh").write_text(f"{sys.executable} save.py\necho not reached\n")
    handle = tfdist("submit", "slurm", "--workers=2", "--sbatch=nodes=2", "--", "bash", "run.sh").strip()
    wait_for(
        lambda: tfdist("logs", handle).count("up") == 2, lambda: tfdist("status", handle), seconds=SECONDS
    )
    tfdist("cancel", handle)
    wait_for(
        lambda: tfdist("logs", handle).count("saved") == 2, lambda: tfdist("logs", handle), seconds=SECONDS
    )
    until("cancelled", tfdist, handle, seconds=SECONDS)
    assert "reached" not in tfdist("logs", handle)
    (tmp_path / "save.py").write_text("print('again')")
    later = tfdist(
        "submit", "slurm", "--workers=2", "--sbatch=nodes=2", "--resume", handle, "--", "bash", "run.sh"
    ).strip()
    until("succeeded", tfdist, later, seconds=SECONDS)
    assert tfdist("logs", later, "--task=worker:0").splitlines() == ["up", "saved", "again", "not reached"]


def test_a_job_that_runs_is_cancelled(tfdist):
    handle = submit(tfdist, words=("0", "wait"))
    until("running", tfdist, handle, seconds=SECONDS)
    tfdist("cancel", handle)
    until("cancelled", tfdist, handle, seconds=SECONDS)


@pytest.fixture
def train(config, tmp_path, cache, monkeypatch):
    """Write train.yaml, with the section of the engine."""
    monkeypatch.setenv("TFDIST_CACHE_DIR", cache)
    setup = "export TF_CPP_MIN_LOG_LEVEL=2"
    section = f"engine: {{slurm: {{sbatch: {{nodes: 3, chdir: {tmp_path}}}, setup: [{setup}]}}}}\n"
    (tmp_path / "train.yaml").write_text(config + section)


@pytest.mark.slow
@pytest.mark.again
def test_a_worker_of_its_own_pace_that_is_killed_is_started_again(tfdist, tmp_path, train):
    changes = ["--set=train.steps=1000", "--set=strategy.name=parameter_server"]
    handle = tfdist("submit", "slurm", "--config", "train.yaml", *changes).strip()
    log = tmp_path / "runs" / f"train-{handle.rpartition('/')[2]}" / "logs" / "rank-3.log"
    wait_for(
        lambda: log.exists() and "worker:1 serves at" in log.read_text(),
        lambda: tfdist("logs", handle),
        seconds=800,
    )
    of_rank = proc.with_variable("SLURM_PROCID", "3")
    [victim] = [each for each in of_rank if each.command.startswith(f"{sys.executable} -m tfdist.train")]
    os.kill(victim.pid, signal.SIGKILL)
    followed = tfdist("logs", handle, "--follow", "--task", "worker:1")
    assert "Lost with status 137: start 2 of this task alone" in followed
    assert followed.count("worker:1 serves at") == 2
    assert "the chief has ended, so worker:1 ends too" in followed
    assert state(tfdist, handle) == "succeeded", followed[-3000:]


def test_a_config_trains_to_the_export_with_the_loss_of_one_machine(tfdist, tmp_path, train, local_loss):
    handle = tfdist("submit", "slurm", "--config", "train.yaml").strip()
    followed = tfdist("logs", handle, "--follow", "--task", "chief:0")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    assert "read the cluster from Slurm's SLURM_STEP_NODELIST: 1 chief + 2 worker + 1 ps" in followed
    [run] = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["starts"]) == (10, 1)
    assert report["test_loss"] == local_loss
    assert "step 10 of 10 (100 %)" in tfdist("status", handle)
    assert (run / "export" / "10" / "saved_model.pb").exists()


def test_mirrored_workers_train_to_the_export(tfdist, tmp_path, train, local_loss):
    changes = ["--set=cluster={worker: 2}", "--set=strategy.name=multi_worker_mirrored"]
    handle = tfdist("submit", "slurm", "--config", "train.yaml", *changes).strip()
    followed = tfdist("logs", handle, "--follow", "--task", "worker:0")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    [run] = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert "strategy multi_worker_mirrored: 2 replicas in sync" in followed
    assert (report["steps"], report["starts"]) == (10, 1)
    assert report["test_loss"] == pytest.approx(local_loss, rel=1e-5)
    assert (run / "export" / "10" / "saved_model.pb").exists()
