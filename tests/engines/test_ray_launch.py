"""`tfdist.ray.launch` in a driver on a real Ray of three nodes: functions, configs, killed actors, Ray's own trainer."""

import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from submitted import wait_for

import proc

pytestmark = pytest.mark.engines
PAGE = Path(__file__).parents[2] / "docs" / "engines" / "ray.md"
SECONDS = 600

FUNCTION = """
import json, os, sys
import tfdist.ray
from tfdist.errors import TfdistError

def square(number):
    import tfdist
    cluster = tfdist.ClusterConfig.from_environment()
    if number < 0:
        raise ArithmeticError("it is negative")
    return number**2, str(cluster.task), os.environ["CUDA_VISIBLE_DEVICES"]

def launch(what, **arguments):
    return tfdist.ray.launch(what, run_dir=sys.argv[1], **arguments)

print("RESULT", json.dumps(launch(square, args=(7,), roles={"worker": 2, "evaluator": 1}, placement="SPREAD")))
for arguments in ({"args": (-1,), "roles": {"worker": 1}}, {"args": (7,), "resources": {"worker": {"GPU": 1}}, "start_timeout": 3}):
    try:
        launch(square, **arguments)
    except TfdistError as error:
        print("ERROR", error)
"""
CONFIG = """
cluster: {worker: 2, ps: 1}
strategy: {name: %s}
data: {name: digits, batch_size: 64}
model: {name: mnist_cnn}
train: {steps: %d, seed: 0}
checkpoint: {every: 20}
"""
DRIVER = """
import json, sys
import tfdist.ray
report = tfdist.ray.launch(sys.argv[1], run_dir=sys.argv[2], placement="SPREAD")
print("RESULT", json.dumps(report))
"""


DIES = """
import os, sys
from pathlib import Path
import tfdist.ray
from tfdist.engines.ray import supervisor
from tfdist.errors import TfdistError

MARKS = [Path(f"{sys.argv[1]}.{i}") for i in range(int(sys.argv[2]))]

class Dies(supervisor.TaskActor):
    def __init__(self, *arguments):
        for mark in MARKS:
            if not mark.exists():
                mark.touch()
                os._exit(1)  # as with its node
        super().__init__(*arguments)

supervisor.TaskActor = Dies
try:
    tfdist.ray.launch(["true"], roles={"worker": 1}, max_failures=1, run_dir=sys.argv[1])
except TfdistError as error:
    print("ERROR", error)
else:
    print("DONE")
"""


def result(output):
    [line] = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.parametrize(("losses", "end"), [(1, "DONE"), (2, "ERROR worker:0: its actor has not started: ")])
def test_an_actor_that_is_lost_before_all_have_started_counts_as_a_failure(ray, tmp_path, losses, end):
    output = ray.drive(sys.executable, "-c", DIES, tmp_path / "run", str(losses))  # Ray sends the class
    assert "the actor of worker:0 has not started (" in output
    assert any(line.startswith(end) for line in output.splitlines()), output


@pytest.mark.again
def test_a_function_is_every_task_and_returns_its_values(ray, tmp_path):
    (tmp_path / "driver.py").write_text(FUNCTION)
    output = ray.drive(sys.executable, tmp_path / "driver.py", tmp_path / "run")
    assert result(output) == {task: [49, task, "-1"] for task in ("evaluator:0", "worker:0", "worker:1")}, (
        output
    )
    failed, unplaced = re.findall(r"^ERROR (.*)$", output, re.MULTILINE)
    assert re.match(
        r"worker:0 on 10\.77\.0\.[123]: ended with exit status 1; its last lines: .*it is negative", failed
    )
    assert unplaced.startswith(
        "ray: the tasks need 1 CPU, 1 GPU + 1 CPU, 1 GPU (PACK), the cluster has 6 CPU on 3 nodes."
    )


def start_driver(ray, tmp_path, strategy, steps):
    (tmp_path / "train.yaml").write_text(CONFIG % (strategy, steps))
    (tmp_path / "driver.py").write_text(DRIVER)
    env = {**ray.environ, "RAY_ADDRESS": "10.77.0.1:6379"}
    words = [sys.executable, tmp_path / "driver.py", tmp_path / "train.yaml", tmp_path / "run"]
    with open(tmp_path / "output", "w") as log:
        return ray.machines.start("node1", words, env=env, stdout=log, stderr=log)


def kill_actor(ray, task):
    """Kill the actor whose task this is: the supervisor of the task's process group holds a pipe to it."""
    [process] = [
        process
        for process in proc.with_variable("TFDIST_TEST_SITE", str(ray.folder))
        if is_training(process, task)
    ]
    [pipe] = [str(Path(f"/proc/{parent_of(process.pid)}/fd/0").readlink())]
    [actor] = [
        process.pid
        for process in proc.with_variable("TFDIST_TEST_SITE", str(ray.folder))
        if process.command.startswith("ray::TaskActor") and pipe in pipes_of(process.pid)
    ]
    os.kill(actor, signal.SIGKILL)


def is_training(process, task):
    return "tfdist.train" in process.command and process.task == task


def parent_of(pid):
    return int(re.search(r"^PPid:\s*([0-9]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])


def pipes_of(pid):
    return [
        str(path.readlink())
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if path.exists() or path.is_symlink()
    ]


def until(condition, output, process):
    wait_for(condition, lambda: output.read_text()[-4000:], seconds=SECONDS, process=process)


def wait_for_text(path, text, process):
    until(lambda: text in path.read_text(), path, process)


@pytest.mark.again
def test_a_killed_actor_of_a_synchronous_run_costs_no_more_than_the_checkpoint(ray, tmp_path):
    process = start_driver(ray, tmp_path, "parameter_server_sync", 200)
    output, checkpoints = tmp_path / "output", tmp_path / "run" / "checkpoints"
    until((checkpoints / "20").exists, output, process)
    kill_actor(ray, "worker:1")
    assert process.wait(SECONDS) == 0, output.read_text()[-4000:]
    text = output.read_text()
    assert "tfdist: the actor of worker:1 on 10.77.0." in text
    assert "is lost (signal 9): all tasks start again in 0 s; 2 restarts are left" in text
    report = result(text)
    assert (report["steps"], report["starts"]) == (200, 2)
    assert report["begun_at_step"] >= 20


@pytest.mark.again
def test_a_killed_actor_of_an_asynchronous_worker_comes_back_alone(ray, tmp_path):
    process = start_driver(ray, tmp_path, "parameter_server", 1500)
    output = tmp_path / "output"
    wait_for_text(output, "chief:0: tfdist: step ", process)
    kill_actor(ray, "worker:1")
    until(lambda: output.read_text().count("worker:1 serves at") == 2, output, process)
    checkpoints = tmp_path / "run" / "checkpoints"
    saved = set(os.listdir(checkpoints))
    until(lambda: len(set(os.listdir(checkpoints)) - saved) >= 3, output, process)
    kill_actor(ray, "worker:1")
    assert process.wait(SECONDS) == 0, output.read_text()[-4000:]
    text = output.read_text()
    # New checkpoints have renewed the restarts. The second pause is longer if the worker has lived shortly.
    lost = r"worker:1 on \S+ is lost \(signal 9\) and starts again in [0-9]+ s; ([0-9]+) restarts are left"
    assert re.findall(lost, text) == ["2", "2"]
    assert text.count("worker:1 serves at") == 3
    assert text.count("worker:0 serves at") == 1
    report = result(text)
    assert (report["steps"], report["starts"]) == (1500, 1)


@pytest.mark.again
def test_rays_own_trainer_trains_keras_3_by_the_lines_of_the_page(ray, tmp_path):
    for name in ("pandas", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("ray[train] is not installed")
    [script] = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "TensorflowTrainer" in block
    ]
    storage = f'run_config=RunConfig(storage_path="{tmp_path}"), scaling_config'
    script = script.replace("import ScalingConfig", "import RunConfig, ScalingConfig").replace(
        "scaling_config", storage, 1
    )
    (tmp_path / "driver.py").write_text(script.replace("print(", 'print("METRICS", '))
    # On a busy machine, TensorFlow's import takes longer than the minute that Ray Train waits.
    patient = ["env", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=600"]
    output = ray.drive(*patient, sys.executable, tmp_path / "driver.py")
    assert re.search(r"^METRICS \{'loss': [0-9.]+\}", output, re.MULTILINE), output[-4000:]


def test_the_function_of_the_page_trains(ray, tmp_path):
    [script] = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "def train(" in block
    ]
    (tmp_path / "driver.py").write_text(script.replace("/mnt/shared", str(tmp_path)))
    output = ray.drive(sys.executable, tmp_path / "driver.py")
    [losses] = map(json.loads, re.findall(r"^\[[0-9., e-]+\]$", output, re.MULTILINE))
    assert len(losses) == 3
    assert losses[2] < losses[0]
