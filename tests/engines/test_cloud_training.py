"""Containers of a rendered request as processes, with the variables and files that the services document."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines import machines, why_no_machines
from submitted import wait_for

import proc
from commands import SECONDS
from tfdist.cluster.config import ClusterConfig
from tfdist.engines.clouds.sagemaker import SageMaker
from tfdist.engines.clouds.vertex import Vertex
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.trainer.config import read_config

pytestmark = pytest.mark.engines

TRAINING = """
cluster: {chief: 1, worker: 1, ps: 1}
strategy: {name: parameter_server_sync}
data: {name: digits, batch_size: 64}
model: {name: mnist_cnn}
train: {steps: 10, seed: 0}
engine:
  vertex: {image: i, output: "gs://BUCKET/runs"}
  sagemaker: {image: i, role: "arn:aws:iam::123456789012:role/r", output: "s3://bucket/runs"}
"""
ROLES = ("chief", "worker", "ps")


def rendered(engine, path):
    settings = read_config(path)
    command = (PYTHON, "-m", "tfdist.train", "--config", CONFIG, "--run_dir", RUN_DIR)
    counts = dict.fromkeys(ROLES, 1)
    job = Job(
        name="digits",
        command=command,
        counts=counts,
        folder=Path("runs").absolute(),
        made_by="tfdist",
        config=path,
        section=settings.config.engine,
    )
    return json.loads(engine.render(job, {}))


@pytest.fixture
def environ(tmp_path, cache):
    """Return the variables of all processes; `python` is this interpreter, as it would be in an image."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    path = f"{python.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TFDIST_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture
def bucket(tmp_path):
    """Mount a folder as gs://NAME, where Vertex AI mounts buckets; return NAME and the folder."""
    mounts, folder, name = Path("/gcs"), tmp_path / "bucket", f"tfdist-{os.getpid()}"
    if os.geteuid() != 0:
        pytest.skip("only root may make /gcs")
    folder.mkdir()
    mounts.mkdir(exist_ok=True)
    (mounts / name).symlink_to(folder)
    yield name, folder
    (mounts / name).unlink()
    if not os.listdir(mounts):
        mounts.rmdir()


def test_a_custom_job_trains_to_aip_model_dir(tmp_path, environ, bucket):
    name, folder = bucket
    (tmp_path / "digits.yaml").write_text(TRAINING.replace("BUCKET", name))
    request = rendered(Vertex(), tmp_path / "digits.yaml")
    place = request["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
    job = folder / "runs" / request["displayName"]
    job.mkdir(parents=True)
    (job / "secret").write_text("0123456789abcdef" * 4)
    cluster = ClusterConfig.local(workers=1, ps=1)
    addresses = {role: [cluster.address((role, 0))] for role in ROLES}
    pools = {f"workerpool{i}": addresses[role] for i, role in enumerate(ROLES)}
    processes = []
    for i, role in enumerate(ROLES):
        container = request["jobSpec"]["workerPoolSpecs"][i]["containerSpec"]
        variables = {
            **environ,
            **{pair["name"]: pair["value"] for pair in container["env"]},
            "CLUSTER_SPEC": json.dumps({"cluster": pools, "environment": "cloud", "task": {"type": f"workerpool{i}", "index": 0, "trial": ""}, "job": "{}"}),
            "TF_CONFIG": json.dumps({"cluster": addresses, "environment": "cloud", "task": {"type": role, "index": 0}}),
            "AIP_MODEL_DIR": f"{place}/model/",
            "AIP_CHECKPOINT_DIR": f"{place}/checkpoints/",
            "AIP_TENSORBOARD_LOG_DIR": f"{place}/logs/",
        }  # fmt: skip
        words = [*container["command"], *container["args"]]
        processes.append(started(words, variables, tmp_path / f"{role}.log", cwd=tmp_path / "elsewhere"))
    ends = ended(processes)
    logs = {role: (tmp_path / f"{role}.log").read_text() for role in ROLES}
    assert ends == [0, 0, 0], logs
    for role in ROLES:
        assert f"; this is {role}:0\n" in logs[role]
    assert (job / "model" / "saved_model.pb").exists()
    assert (job / "checkpoints" / "10" / "about.json").exists()
    assert list((job / "logs" / "train").glob("events.*"))
    assert json.loads((job / "report.json").read_text())["steps"] == 10
    assert os.listdir(tmp_path / "elsewhere") == []
    report = {"report", "report.html", "report.json", "events.jsonl"}
    assert set(os.listdir(job)) == {"checkpoints", "logs", "model", "secret", *report}


# SageMaker says nowhere which group gets which host.
HOST_OF = {"chief": "node2", "worker": "node3", "ps": "node1"}


@contextlib.contextmanager
def training_job(folder, environ, text):
    """Run each container of a training job on a machine of its own; /opt/ml of a task is `folder / role`."""
    if reason := why_no_machines():
        pytest.skip(reason)
    (folder / "digits.yaml").write_text(text)
    (folder / "secret").write_text("0123456789abcdef" * 4)
    request = rendered(SageMaker(), folder / "digits.yaml")
    algorithm = request["AlgorithmSpecification"]
    words = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
    groups = [
        {
            "instance_group_name": group["InstanceGroupName"],
            "instance_type": group["InstanceType"],
            "hosts": [HOST_OF[group["InstanceGroupName"]]],
        }
        for group in request["ResourceConfig"]["InstanceGroups"]
    ]
    with machines(folder, 3) as made:
        processes = []
        for role, host in HOST_OF.items():
            config = folder / role / "input" / "config"
            config.mkdir(parents=True)
            resources = {
                "current_host": host,
                "current_group_name": role,
                "hosts": sorted(HOST_OF.values()),
                "network_interface_name": "eth0",
                "instance_groups": groups,
            }
            (config / "resourceconfig.json").write_text(json.dumps(resources))
            variables = {
                **environ,
                **request["Environment"],
                "SM_INPUT_CONFIG_DIR": str(config),
                "TFDIST_SECRET_FILE": str(folder / "secret"),
            }
            with open(folder / f"{role}.log", "w") as log:
                options = {"stdout": log, "stderr": log, "cwd": folder / "elsewhere"}
                processes.append(made.start(host, words, env=variables, **options))
        yield processes


def test_a_training_job_trains_to_sm_model_dir(tmp_path, environ):
    with training_job(tmp_path, environ, TRAINING) as processes:
        ends = ended(processes)
    logs = {role: (tmp_path / f"{role}.log").read_text() for role in ROLES}
    assert ends == [0, 0, 0], logs
    chief = tmp_path / "chief"
    for role in ROLES:
        assert f"tfdist: this container is {role}:0\n" in logs[role]
        assert (tmp_path / role / "model").exists() == (role == "chief")
        assert not (tmp_path / role / "output" / "failure").exists()
    assert (chief / "model" / "10" / "saved_model.pb").exists()
    assert (chief / "checkpoints" / "10" / "about.json").exists()
    assert list((chief / "output" / "data" / "summaries" / "train").glob("events.*"))
    assert json.loads((chief / "output" / "data" / "report.json").read_text())["steps"] == 10
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.slow
@pytest.mark.again
def test_containers_start_again_together_and_continue_from_the_checkpoint(tmp_path, environ):
    text = TRAINING.replace("steps: 10", "steps: 100") + "checkpoint: {every: 20}\n"
    with training_job(tmp_path, environ, text) as processes:
        wait_for((tmp_path / "chief" / "checkpoints" / "20").exists, seconds=SECONDS, process=processes[0])
        of_worker = proc.with_variable("SM_MODEL_DIR", str(tmp_path / "worker" / "model"))
        os.kill(of_worker[0].pid, signal.SIGKILL)
        ends = ended(processes)
    logs = {role: (tmp_path / f"{role}.log").read_text() for role in ROLES}
    assert ends == [0, 0, 0], logs
    assert "tfdist: the command ended with 137: start 2" in logs["worker"]
    assert "tfdist: the command ended with 138: start 2" in logs["chief"]
    report = json.loads((tmp_path / "chief" / "output" / "data" / "report.json").read_text())
    assert (report["steps"], report["starts"]) == (100, 2)
    assert report["begun_at_step"] >= 20


def started(words, variables, log, cwd):
    with open(log, "w") as output:
        return subprocess.Popen(
            words, env=variables, stdout=output, stderr=output, cwd=cwd, start_new_session=True
        )


def ended(processes):
    """Wait for all processes; return their exit statuses."""
    deadline = time.monotonic() + SECONDS
    try:
        return [process.wait(max(1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
