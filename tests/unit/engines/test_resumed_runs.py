"""A job that continues an earlier run: every engine tells its tasks the folder of that run, not one of its own."""

import shutil
from pathlib import Path

import pytest

from tfdist.engines.find_engine import _ENGINES, find_engine
from tfdist.engines.job_description import PYTHON, RUN_DIR, Job
from tfdist.trainer.sections.engine import (
    EngineSection,
    KubernetesSection,
    SageMakerSection,
    SshSection,
    VertexSection,
)

SECTIONS = EngineSection(
    kubernetes=KubernetesSection(image="image"),
    sagemaker=SageMakerSection(image="image", role="arn:role", output="s3://bucket/runs"),
    ssh=SshSection(hosts=["localhost"]),
    vertex=VertexSection(image="image", output="gs://bucket/runs"),
)
RUNS = Path("runs").absolute()
IN_A_SHELL = f"run_dir={RUNS}/cifar-3\n"
ON_THE_VOLUME = "- /tfdist/runs/cifar-3\n"
PLACES = {
    "compose": f"{RUNS}/cifar-3,",
    "jobset": ON_THE_VOLUME,
    "kubernetes": ON_THE_VOLUME,
    "local": IN_A_SHELL,
    "ray": f"run_dir='{RUNS}/cifar-3',",
    "sagemaker": '"s3://bucket/runs/cifar-3/checkpoints"',
    "slurm": IN_A_SHELL,
    "ssh": IN_A_SHELL,
    "tfjob": ON_THE_VOLUME,
    "trainjob": ON_THE_VOLUME,
    "vertex": '"outputUriPrefix": "gs://bucket/runs/cifar-3"',
}


def test_no_engine_is_missing():
    assert set(PLACES) == set(_ENGINES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not found"))
        if name == "ssh"
        else name
        for name in PLACES
    ],
)
def test_the_tasks_get_the_folder_of_the_earlier_run(name):
    job = Job(
        name="cifar",
        command=(PYTHON, "train.py", "--out", RUN_DIR, "last"),
        counts={"chief": 1, "worker": 2},
        folder=RUNS,
        made_by="tfdist submit",
        section=SECTIONS,
        run="cifar-3",
    )
    assert PLACES[name] in find_engine(name).render(job, {})
