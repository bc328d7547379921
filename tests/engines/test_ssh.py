"""`tfdist submit ssh` on three machines with a real sshd each."""

import json
import os
import re
import signal
import sys

import pytest
from submitted import wait_for

import proc
from commands import tfdist_in

pytestmark = pytest.mark.engines
SECONDS = 240

SCRIPT = """
import os, pathlib, socket, subprocess, sys, time
from tfdist import ClusterConfig

def command_line(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""

cluster = ClusterConfig.from_environment()
print("I am", cluster.task, "on", socket.gethostname(), "of", cluster.address(cluster.task), flush=True)
command_lines = str([command_line(path) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")])
print("secret of", len(os.environ["TFDIST_SECRET"]), os.environ["TFDIST_SECRET"] in command_lines, flush=True)
if "once" in sys.argv:
    subprocess.Popen(["sleep", "601"], start_new_session=True)
    lost, back = pathlib.Path("lost"), pathlib.Path("back")
    if str(cluster.task) == "worker:1":
        (back if lost.exists() else lost).touch()
        if not back.exists():
            os.kill(os.getpid(), 9)
    while not back.exists():
        time.sleep(0.1)
if "wait" in sys.argv:
    subprocess.Popen(["sleep", "601"], start_new_session=True)
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def tfdist(ssh, folder):
    """Return a function that runs a command of tfdist's on the user's machine."""

    def run(*words, status=0):
        words = tfdist_in(folder, *words)
        done = ssh.run(*words, timeout=3 * SECONDS, XDG_STATE_HOME=str(folder / "state"))
        assert done.returncode == status, f"{done.stdout}{done.stderr}"
        return done.stderr if status else done.stdout

    return run


@pytest.fixture
def options(ssh):
    return {**ssh.options, "hosts": "node1,node2,node3"}


def submit(tfdist, options, *more, words=("0",), **changes):
    flags = [f"--option={name}={value}" for name, value in {**options, **changes}.items()]
    script = ["--", "python", "script.py", *words]
    return tfdist("submit", "ssh", "--workers", "2", "--ps", "1", *flags, *more, *script).strip()


def status(tfdist, handle):
    return tfdist("status", handle).split("  ")[1]


def until(wanted, tfdist, handle):
    wait_for(
        lambda: status(tfdist, handle).startswith(wanted),
        lambda: f"{status(tfdist, handle)}{tfdist('logs', handle)}",
        seconds=SECONDS,
    )


def run_dir(folder, handle):
    return folder / "runs" / f"script-{handle.rpartition('/')[2]}"


@pytest.mark.again
def test_a_script_is_every_task_of_the_cluster(tfdist, folder, options):
    handle = submit(tfdist, options)
    assert handle.startswith("ssh://ctl/")
    followed = tfdist("logs", handle, "--follow").splitlines()
    assert status(tfdist, handle) == "succeeded (exit status 0)", followed
    lines = [line.partition(": ")[2].split() for line in followed if ": I am" in line]
    hosts = {"chief:0": "node1", "ps:0": "node2", "worker:0": "node3", "worker:1": "node1"}
    assert {words[2]: words[4] for words in lines} == hosts
    assert all(words[4] == words[6].partition(":")[0] for words in lines)
    [_, secret] = tfdist("logs", handle, "--task", "worker:1").splitlines()
    assert secret == "secret of 64 False"  # it is in no command line
    assert (run_dir(folder, handle) / "exit_status").read_text() == "0\n"
    assert handle in tfdist("list")


@pytest.fixture
def mark(options, tmp_path):
    """Mark all processes of the hosts by a variable, and return a function that counts them."""
    options["setup"] += f" TEST_MARK={tmp_path}"
    return lambda: len(proc.with_variable("TEST_MARK", str(tmp_path)))


def all_run(tfdist, handle):
    """Wait until all four tasks have started another process each."""
    wait_for(
        lambda: tfdist("logs", handle).count("secret of") >= 4,
        lambda: tfdist("status", handle),
        seconds=SECONDS,
    )


def ended(mark, seconds=SECONDS):
    wait_for(lambda: not mark(), lambda: f"{mark()} processes are left", seconds=seconds)


def test_a_killed_client_leaves_no_process_on_any_host(tfdist, folder, options, mark):
    handle = submit(tfdist, options, words=("0", "wait"))
    all_run(tfdist, handle)
    assert mark() > 4
    [lock] = (folder / "state" / "tfdist" / "running").glob("*")
    os.killpg(int(lock.read_text()), signal.SIGKILL)
    ended(mark)
    until("failed (killed, or this machine was started again)", tfdist, handle)


@pytest.mark.again
def test_a_cancelled_job_leaves_no_process(tfdist, options, mark):
    handle = submit(tfdist, options, words=("0", "wait"))
    all_run(tfdist, handle)
    tfdist("cancel", handle)
    until("cancelled", tfdist, handle)
    assert mark() == 0


def test_each_problem_of_a_host_is_one_line(tfdist, folder, options):
    other = folder / "other"
    (other / "tfdist" / "engines").mkdir(parents=True)
    (other / "tfdist" / "__init__.py").touch()
    options["hosts"] = "node1,node2,node3,node9"
    setup = f"test $(hostname) != node1 || cd /nowhere || exit 91\ntest $(hostname) != node2 || export PYTHONPATH={other}"
    options["setup"] += f"\n{setup}"
    flags = [f"--option={name}={value}" for name, value in options.items()]
    words = ["submit", "ssh", "--workers", "3", "--ps", "1", *flags, "--", "true"]
    errors = tfdist(*words, status=2)
    lines = [line for line in errors.splitlines() if line.startswith("tfdist: node")]
    assert [line.split(":")[1].strip() for line in lines] == ["node1", "node2", "node9"]
    assert f"node1: has no folder {folder}. Copy the code there" in lines[0]
    assert f"node2: {sys.executable} has no tfdist, or another version" in lines[1]
    assert "node9: cannot be reached: Could not resolve hostname node9" in lines[2]
    assert "Traceback" not in errors
    assert not (folder / "runs").exists()  # nothing was started


@pytest.mark.slow
@pytest.mark.again
def test_a_lost_task_starts_all_again_or_itself_alone(tfdist, folder, options, mark):
    for alone in ((), ("--alone", "worker")):
        for name in ("lost", "back"):
            (folder / name).unlink(missing_ok=True)
        handle = submit(tfdist, options, *alone, words=("0", "once"))
        followed = tfdist("logs", handle, "--follow")
        assert status(tfdist, handle) == "succeeded (exit status 0)", followed
        starts = {name: followed.count(f"I am {name} ") for name in ("chief:0", "worker:0", "worker:1")}
        assert starts == {"chief:0": 1 if alone else 2, "worker:0": 1 if alone else 2, "worker:1": 2}
        assert "tfdist: worker:1 on node1: ended by signal 9" in followed
        assert mark() == 0


@pytest.mark.slow
@pytest.mark.again
def test_a_host_out_of_reach_ends_its_tasks_before_they_start_again(tfdist, ssh, options, mark, tmp_path):
    handle = submit(tfdist, options, words=("0", "wait"), restarts="9")
    all_run(tfdist, handle)

    def on_node2():
        marked = proc.with_variable("TEST_MARK", str(tmp_path))
        return [process for process in marked if process.task == "ps:0"]

    assert on_node2()
    ssh.machines.run("node2", ["ip", "link", "set", "eth0", "down"])
    try:
        lost = "the connection to node2 is lost"
        wait_for(lambda: lost in tfdist("logs", handle), lambda: tfdist("logs", handle), seconds=SECONDS)
        assert on_node2() == []
    finally:
        ssh.machines.run("node2", ["ip", "link", "set", "eth0", "up"])
    wait_for(
        lambda: tfdist("logs", handle).count("I am ps:0 ") >= 2,
        lambda: tfdist("logs", handle),
        seconds=SECONDS,
    )
    tfdist("cancel", handle)
    until("cancelled", tfdist, handle)
    assert mark() == 0


SECTION = """
engine:
  ssh:
    hosts: {ps: [node3], worker: [node1, node2]}
    options: OPTIONS
    python: PYTHON
    setup: ["SETUP"]
"""


def write_config(folder, ssh, cache, text, section=SECTION):
    options = dict(ssh.options)
    texts = {"PYTHON": options.pop("python"), "SETUP": options.pop("setup") + f" TFDIST_CACHE_DIR={cache}"}
    section = re.sub("PYTHON\\b|SETUP", lambda match: texts[match[0]], section)
    (folder / "train.yaml").write_text(text + section.replace("OPTIONS", json.dumps(options)))


def test_a_config_trains_to_the_export_and_the_same_loss(tfdist, folder, ssh, cache, config, local_loss):
    write_config(folder, ssh, cache, config)
    handle = tfdist("submit", "ssh", "--config", "train.yaml").strip()
    followed = tfdist("logs", handle, "--follow")
    assert status(tfdist, handle) == "succeeded (exit status 0)", followed[-5000:]
    assert "  step 10 of 10 (100 %)" in tfdist("status", handle)
    [run] = (folder / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["starts"]) == (10, 1)
    assert report["test_loss"] == local_loss
    assert (run / "export" / "10" / "saved_model.pb").exists()
    assert "worker:1: tfdist: worker:1 serves at grpc://node2:" in followed
    assert "the chief has ended, so ps:0 ends too" in followed


@pytest.mark.again
def test_a_config_without_a_cluster_trains_on_one_host(tfdist, folder, ssh, cache):
    text = "data: {name: digits}\nmodel: {name: mnist_cnn}\ntrain: {steps: 4}\n"
    section = re.sub("hosts: .*", "hosts: [node2, node3]", SECTION)
    write_config(folder, ssh, cache, text, section)
    handle = tfdist("submit", "ssh", "--config", "train.yaml").strip()
    followed = tfdist("logs", handle, "--follow")
    assert status(tfdist, handle) == "succeeded (exit status 0)", followed[-5000:]
    [run] = (folder / "runs").iterdir()
    assert json.loads((run / "report.json").read_text())["steps"] == 4
    assert '"worker:0": "node2"' in (run / "ssh.json").read_text()
