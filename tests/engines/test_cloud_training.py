"""Containers of a rendered request as processes, with the variables and files that the services document."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines import machines, why_no_machines

from commands import SECONDS
from tfdist.cluster.config import ClusterConfig
from tfdist.engines.job import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.sagemaker import SageMaker
from tfdist.engines.vertex import Vertex
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
        assert f"tfdist: this container is {role}:0\n" in logs[role]
    assert (job / "model" / "saved_model.pb").exists()
    assert (job / "checkpoints" / "10" / "about.json").exists()
    assert list((job / "logs" / "train").glob("events.*"))
    assert json.loads((job / "report.json").read_text())["steps"] == 10
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(os.listdir(job)) == ["checkpoints", "logs", "model", "report.json", "secret"]


@pytest.mark.slow
@pytest.mark.again
def test_a_training_job_trains_to_sm_model_dir(tmp_path, environ):
    if reason := why_no_machines():
        pytest.skip(reason)
    (tmp_path / "digits.yaml").write_text(TRAINING)
    request = rendered(SageMaker(), tmp_path / "digits.yaml")
    algorithm, groups = request["AlgorithmSpecification"], request["ResourceConfig"]["InstanceGroups"]
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    # SageMaker says nowhere which group gets which host.
    host_of = {"chief": "node2", "worker": "node3", "ps": "node1"}
    with machines(tmp_path, 3) as made:
        processes = []
        for role, host in host_of.items():
            config = tmp_path / role / "input" / "config"
            config.mkdir(parents=True)
            resources = {
                "current_host": host,
                "current_group_name": role,
                "hosts": sorted(host_of.values()),
                "network_interface_name": "eth0",
                "instance_groups": [
                    {
                        "instance_group_name": group["InstanceGroupName"],
                        "instance_type": group["InstanceType"],
                        "hosts": [host_of[group["InstanceGroupName"]]],
                    }
                    for group in groups
                ],
            }
            (config / "resourceconfig.json").write_text(json.dumps(resources))
            variables = {
                **environ,
                **request["Environment"],
                "SM_INPUT_CONFIG_DIR": str(config),  # here /opt/ml is tmp_path / role
                "TFDIST_SECRET_FILE": str(tmp_path / "secret"),
            }
            words = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
            with open(tmp_path / f"{role}.log", "w") as log:
                processes.append(
                    made.start(host, words, env=variables, stdout=log, stderr=log, cwd=tmp_path / "elsewhere")
                )
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
