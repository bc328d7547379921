"""`tfdist env` prints what a bug report needs, and no secret."""

import json
import subprocess
import sys

import pytest

from commands import tfdist
from tfdist.diagnostics.environment import describe_environment


@pytest.fixture
def root(tmp_path):
    """A machine with two GPUs and a limit for memory."""
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: A Processor 9000\nflags\t: avx2 fma\n",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n",
        "sys/fs/cgroup/memory.max": f"{4 << 30}\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\nGCC version: x\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA A100\nIRQ: 1\n",
        "proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA L4\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def test_the_machine_is_described(root):
    facts = describe_environment({}, root)

    assert facts["processor"] == "A Processor 9000"
    assert facts["memory"] == "16.0 GiB, 8.0 GiB available, limited to 4.0 GiB"
    assert facts["gpus"] == "NVIDIA A100, NVIDIA L4, NVIDIA UNIX x86_64 Kernel Module  550.1"
    assert " free of " in facts["shared memory"]


def test_an_unknown_system_is_no_error(tmp_path):
    facts = describe_environment({}, tmp_path)

    assert facts["memory"] == "unknown"
    assert facts["gpus"] == "none"
    assert facts["shared memory"] == "unknown: No such file or directory"


def test_only_variables_that_matter_are_printed_and_no_secret(root):
    environ = {
        "TF_CONFIG": "{}",
        "TFDIST_SECRET": "hidden",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "TF_VAR_password": "hidden",
        "HTTPS_PROXY": "http://me:hidden@proxy:3128",
        "http_proxy": "http://proxy:3128",
    }
    facts = describe_environment(environ, root)

    assert (facts["TF_CONFIG"], facts["TFDIST_SECRET"]) == ("{}", "(set)")
    assert (facts["HTTPS_PROXY"], facts["http_proxy"]) == ("(set)", "http://proxy:3128")
    assert "hidden" not in str(facts)


def test_the_command_prints_lines_to_paste():
    run = tfdist("env", TF_CONFIG="{}\n\x1b[2J")

    assert run.returncode == 0, run.stderr
    title, _, *lines = run.stdout.splitlines()
    assert title == "Copy these lines into your bug report:"
    assert all(line.startswith("- ") for line in lines)
    assert "- TF_CONFIG: '{}\\n\\x1b[2J'" in lines  # which no terminal obeys
    names = [line[2:].partition(":")[0] for line in lines]
    assert {"tfdist", "python", "platform", "numpy", "cores", "memory", "open files"} <= set(names)


def test_the_command_prints_json():
    facts = json.loads(tfdist("env", "--json").stdout)

    assert facts["python"].endswith(f"({sys.executable})")


def test_it_loads_no_tensorflow():
    code = "import sys, tfdist.diagnostics.environment as e; e.describe_environment(); print('tensorflow' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "False"


def test_what_a_container_gets_as_a_variable_is_not_printed(root):
    environ = {"TFDIST_CONFIG_0": "env: {TOKEN: hidden}", "TFDIST_JOB_SCRIPT": "export A=hidden"}
    assert "hidden" not in str(describe_environment(environ, root))
