"""oneDNN is on where the processor has what it needs, unless the user says otherwise."""

import importlib.metadata
import io
import os
import platform
import subprocess
import sys

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.onednn_variables import onednn_variables

NAME = "TF_ENABLE_ONEDNN_OPTS"
LINUX = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="is for Linux on x86 processors"
)
HERE = pytest.mark.skipif(not onednn_variables(), reason="this processor or TensorFlow is too old for it")


@pytest.fixture
def tensorflow(monkeypatch):
    """Return a function that pretends that one package is installed in a version, and no other package."""

    def have(name, version):
        def installed(asked):
            if asked != name:
                raise importlib.metadata.PackageNotFoundError(asked)
            return version

        monkeypatch.setattr(importlib.metadata, "version", installed)

    return have


@LINUX
@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu sse4_2 avx f16c fma avx2 bmi2", {NAME: "1"}),
        ("fpu sse4_2 avx f16c fma avx2 avx512f avx512_vnni", {NAME: "1"}),
        ("fpu sse4_2 avx", {}),
        ("fpu sse4_2 avx avx2", {}),
        ("", {}),
    ],
)
def test_a_processor_must_have_both(tmp_path, tensorflow, flags, found):
    tensorflow("tensorflow", "2.15.0.post1")
    says = tmp_path / "cpuinfo"
    says.write_text(f"processor\t: 0\nmodel name\t: avx2 fma\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert onednn_variables(says) == found


@LINUX
@pytest.mark.parametrize(
    ("name", "version", "is_asked_for"),
    [
        ("tensorflow", "2.14.1", False),
        ("tensorflow", "2.15.0", True),
        ("tensorflow", "3.0.0rc1", True),
        ("tensorflow-cpu", "2.21.0", True),
        ("tensorflow-cpu", "2.12.1", False),
        ("tensorflow-of-my-own", "2.21.0", False),
    ],
)
def test_a_tensorflow_that_fails_with_it_is_left_alone(tmp_path, tensorflow, name, version, is_asked_for):
    tensorflow(name, version)
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2 fma\n")
    assert bool(onednn_variables(tmp_path / "cpuinfo")) == is_asked_for


def test_a_system_that_says_nothing_is_left_alone(tmp_path):
    assert onednn_variables(tmp_path / "none") == {}
    (tmp_path / "empty").write_text("")
    assert onednn_variables(tmp_path / "empty") == {}


@HERE
@pytest.mark.parametrize(("said", "is_on"), [(None, True), ("0", False)])
def test_a_launched_program_has_it_on_unless_the_user_has_it_off(tmp_path, monkeypatch, said, is_on):
    monkeypatch.delenv(NAME, raising=False)
    if said is not None:
        monkeypatch.setenv(NAME, said)
    code = "import tensorflow; from tensorflow.python.util import _pywrap_util_port as port; print(port.IsMklEnabled())"
    stream = io.StringIO()
    launch(ClusterConfig.local(workers=1), [sys.executable, "-c", code], run_dir=tmp_path, stream=stream)
    assert f"[worker:0] {is_on}\n" in stream.getvalue()


@HERE
@pytest.mark.parametrize(("said", "received"), [(None, "1"), ("0", "0")])
def test_a_command_sets_it_for_its_own_process_unless_it_is_set(said, received):
    code = "import os; from tfdist.cli import _flags_from_signature; _flags_from_signature.run(lambda: print(os.environ['TF_ENABLE_ONEDNN_OPTS']))"
    environ = {name: value for name, value in os.environ.items() if name != NAME}
    told = {} if said is None else {NAME: said}
    run = subprocess.run(
        [sys.executable, "-c", code], env={**environ, **told}, capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{received}\n"
