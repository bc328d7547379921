"""The Dockerfile that tfdist renders is built on a real Docker, and its image runs tfdist without root.

No registry and no package index is asked: the base image and the wheels are made of this host's files. The wheels
of large packages, TensorFlow among them, are empty.
"""

import re
import sys
import zipfile
from pathlib import Path

import pytest
from python_image import make_python_image, pack_wheel

import tfdist

pytestmark = pytest.mark.engines
CONFIG = """
cluster: {worker: 2, ps: 1}
engine: {dockerfile: {tfdist: WHEEL, copy: [train.yaml]}}
"""


def _pack_tfdist(folder, metadata):
    """Write a wheel of the package under test, as pip would build it."""
    name = f"tfdist-{tfdist.__version__}"
    path = folder / f"{name}-py3-none-any.whl"
    source = Path(tfdist.__file__).parent
    with zipfile.ZipFile(path, "w") as wheel:
        for file in sorted(source.rglob("*.py")):
            wheel.write(file, f"tfdist/{file.relative_to(source)}")
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(
            f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    return path


@pytest.mark.again
def test_it_builds_and_runs_tfdist_without_root(docker, tmp_path):
    (tmp_path / "wheels").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: tfdist\nVersion: {tfdist.__version__}\nRequires-Dist: msgspec\n"
    wheel = _pack_tfdist(tmp_path, metadata)
    (tmp_path / "train.yaml").write_text(CONFIG.replace("WHEEL", wheel.name))
    render = [sys.executable, "-m", "tfdist", "render", "dockerfile", "--config=train.yaml", "-o=Dockerfile"]
    docker.run("env", f"--chdir={tmp_path}", *render)
    for package in re.findall(r"'([^'=]+)==[^']+'", (tmp_path / "Dockerfile").read_text()):
        pack_wheel(package, tmp_path / "wheels")
    make_python_image(docker.environ, "local-python:1", tmp_path / "wheels")
    build = [
        "docker",
        "build",
        "--build-arg=BASE=local-python:1",
        "--tag=tfdist-built",
        "--file",
        tmp_path / "Dockerfile",
    ]
    docker.run(*build, tmp_path, timeout=600, DOCKER_BUILDKIT="0")

    run = ["docker", "run", "--rm", "tfdist-built", "python"]
    plan = docker.run(*run, "-m", "tfdist", "plan", "--config", "train.yaml")
    assert "worker:1" in plan
    facts = "import os, tempfile; tempfile.TemporaryFile(dir='/runs'); print(os.getuid(), os.access('/opt/venv', os.W_OK))"
    assert docker.run(*run, "-c", facts) == "10001 False\n"
    as_another = ["docker", "run", "--rm", "--user=1234", "tfdist-built", "python"]
    assert docker.run(*as_another, "-c", facts) == "1234 False\n"
