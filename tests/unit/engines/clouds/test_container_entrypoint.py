"""What a container of a managed service does before and after the command of a task."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tfdist.engines.clouds.container_entrypoint import config_variables
from tfdist.engines.job_description import Job

HOSTS = {
    "current_host": "algo-2",
    "current_group_name": "worker",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": [
        {"instance_group_name": "chief", "instance_type": "ml.m5.large", "hosts": ["algo-1"]},
        {"instance_group_name": "worker", "instance_type": "ml.m5.large", "hosts": ["algo-3", "algo-2"]},
    ],
    "network_interface_name": "eth0",
}


def start(*words, **variables):
    command = [sys.executable, "-m", "tfdist.engines.clouds.container_entrypoint", *words]
    environ = {**os.environ, **variables}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words, **variables):
    process = start(*words, **variables)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


@pytest.fixture
def opt_ml(tmp_path):
    """Return the folder that is /opt/ml on SageMaker, and the variable that leads to it."""
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps(HOSTS))
    return tmp_path, {"SM_INPUT_CONFIG_DIR": str(folder)}


def test_the_config_is_a_file_for_the_command(tmp_path):
    path = tmp_path / "cifar.yaml"
    path.write_text("# é\n" * 400)
    code = "import sys; print(sys.argv[1]); print(open(sys.argv[1]).read(), end='')"
    job = Job("x", command=(), counts={"worker": 1}, folder=tmp_path, made_by="", config=path)
    status, output, errors = run(sys.executable, "-c", code, "{config}", **config_variables(job))
    assert (status, errors) == (0, "")
    _, name, text = output.split("\n", 2)
    assert name.endswith("/cifar.yaml")
    assert text == path.read_text()


def test_on_sagemaker_the_command_gets_what_the_toolkit_would_set(opt_ml):
    folder, variables = opt_ml
    code = "import os, json; print(json.loads(os.environ['SM_RESOURCE_CONFIG'])['current_host'], os.environ['SM_MODEL_DIR'])"
    status, output, _ = run(sys.executable, "-c", code, **variables)
    assert status == 0
    assert output.splitlines() == ["tfdist: this container is worker:0", f"algo-2 {folder / 'model'}"]


@pytest.mark.parametrize(
    ("ending", "status", "starts"),
    [
        ("sys.exit(138)", 138, 3),
        ("os.kill(os.getpid(), 9)", 137, 3),
        ("sys.exit(-1)", 255, 1),  # no signal
        ("sys.exit(2)", 2, 1),
        ("sys.exit(0)", 0, 1),
    ],
)
def test_a_lost_command_is_started_again_while_restarts_are_left(opt_ml, ending, status, starts):
    folder, variables = opt_ml
    code = f"import os, sys; print('up', flush=True); {ending}"
    found, output, _ = run(sys.executable, "-c", code, TFDIST_RESTARTS="2", **variables)
    assert found == status
    assert output.count("up\n") == starts
    failure = folder / "output" / "failure"
    assert failure.exists() == (status != 0)
    if status:
        assert failure.read_text().endswith(f"exited with {status}")


def test_a_reason_that_the_command_has_written_is_kept(opt_ml):
    folder, variables = opt_ml
    (folder / "output").mkdir()
    path = folder / "output" / "failure"
    path.write_text("that of a start before")
    code = f"import sys; assert not open({str(path)!r}, 'x').write('mine') - 4; sys.exit(2)"
    assert run(sys.executable, "-c", code, **variables)[0] == 2
    assert path.read_text() == "mine"


def test_a_command_that_was_told_to_end_is_not_started_again(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(138)); print('up', flush=True); time.sleep(99)"
    process = start(sys.executable, "-c", code, TFDIST_RESTARTS="2")
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (138, "")


def test_a_mistake_is_one_line():
    assert run() == (2, "", "tfdist: tfdist.engines.clouds.container_entrypoint: needs a command\n")
    status, _, errors = run("no_such_command")
    assert status == 2
    assert errors == "tfdist: 'no_such_command': No such file or directory. Install it in the image\n"
