"""Bring engines up on this machine, each once for all tests that need it."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from docker_site import NoDockerError, docker_site, why_no_docker
from ray_site import ray_site, why_no_ray
from slurm_site import slurm_site, why_no_slurm
from ssh_site import ssh_site, why_no_ssh


@pytest.fixture(scope="session")
def slurm():
    """Return a Slurm cluster of three nodes."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_site() as site:
        yield site


@pytest.fixture(scope="session")
def ray():
    """Return a Ray cluster of three nodes."""
    if reason := why_no_ray():
        pytest.skip(reason)
    with ray_site() as site:
        yield site


@pytest.fixture(scope="session")
def ssh():
    """Return three machines that a user of a fourth logs in to."""
    if reason := why_no_ssh():
        pytest.skip(reason)
    with ssh_site() as site:
        yield site


# The YAML that every engine trains, with sections of its own.
CONFIG = """
cluster: {worker: 2, ps: 1}
strategy: {name: parameter_server_sync}
data: {name: digits, batch_size: 64}
model: {name: mnist_cnn}
train: {steps: 10, seed: 0}
launch: {threads: 1}
"""


@pytest.fixture(scope="session")
def config():
    """Return the text of the config that every engine trains."""
    return CONFIG


@pytest.fixture(scope="session")
def local_loss(once, cache, tmp_path_factory):
    """Return the loss of the config after `tfdist train` on this machine: that of every engine, to the bit."""

    def loss():
        folder = tmp_path_factory.mktemp("local")
        (folder / "train.yaml").write_text(CONFIG)
        command = [sys.executable, "-m", "tfdist", "train", "--config", "train.yaml", "--run_dir", "run"]
        environ = {**os.environ, "TFDIST_CACHE_DIR": str(cache), "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((folder / "run" / "report.json").read_text())["test_loss"]

    return once("local_loss", loss)


@pytest.fixture(scope="session")
def docker():
    """Return a Docker engine, with an image for tasks of tfdist."""
    if reason := why_no_docker():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        try:
            site = stack.enter_context(docker_site())
        except NoDockerError as error:
            pytest.skip(str(error))
        yield site
