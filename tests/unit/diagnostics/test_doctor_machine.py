"""Check that `tfdist doctor` finds what is wrong with a machine: each test makes it so."""

import contextlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from commands import tfdist
from tfdist.diagnostics.control_group_limits import core_limit, memory_left
from tfdist.diagnostics.doctor.check_machine import check_machine
from tfdist.diagnostics.doctor.check_software import check_software
from tfdist.diagnostics.doctor.finding import Finding
from tfdist.launcher.onednn_variables import onednn_variables

CHECK = """
import sys
from pathlib import Path
from tfdist.diagnostics.doctor.check_machine import check_machine
for finding in check_machine(Path(sys.argv[1])):
    print(finding)
"""


def lines(*words, before="", **options):
    """Run the checks in a process of its own, after a command of the shell's."""
    command = f'{before}\nexec "$@"'
    run = subprocess.run(
        [*words, "sh", "-ec", command, "sh", sys.executable, "-c", CHECK, str(options.pop("folder", "runs"))],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
    assert run.returncode == 0, run.stderr
    return {line[11:25].strip(): line for line in run.stdout.splitlines()}


def can_mount():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="may not mount in a namespace of its own")


def test_this_machine_is_described():
    found = {finding.check: finding for finding in check_machine(Path("runs"))}

    assert list(found) == [
        *("cores", "memory", "shared memory", "memory files", "open files"),
        *("run folder", "cache folder", "oneDNN"),
    ]
    assert all(bool(finding.remedy) == (finding.state != "ok") for finding in found.values())
    assert f" of {os.cpu_count()}" in found["cores"].found


def test_only_linux_has_shared_memory(monkeypatch):
    monkeypatch.setattr("tfdist.diagnostics.doctor.check_machine.sys.platform", "darwin")
    assert "shared memory" not in {finding.check for finding in check_machine(Path("runs"))}


@needs_mounts
def test_a_small_tmpfs_is_found(tmp_path):
    before = "mount -t tmpfs -o size=1m none /dev/shm"
    line = lines("unshare", "--mount", before=before)["shared memory"]

    assert line.startswith("  warning")
    assert "1 MiB free of 1 MiB" in line
    assert "--shm-size" in line


@needs_mounts
def test_a_full_disk_is_found(tmp_path):
    before = f"mount -t tmpfs -o size=1m none {tmp_path}\nhead -c 1048576 /dev/zero > {tmp_path}/full || true"
    line = lines("unshare", "--mount", before=before, folder=tmp_path / "runs/x")["run folder"]

    assert line.startswith("  failed")
    assert "0 MiB free" in line
    assert "--run_dir" in line


@needs_mounts
def test_a_small_disk_is_a_warning(tmp_path):
    before = f"mount -t tmpfs -o size=5m none {tmp_path}"
    line = lines("unshare", "--mount", before=before, folder=tmp_path)["run folder"]

    assert line.startswith("  warning")
    assert "5 MiB free" in line


@needs_mounts
def test_a_read_only_folder_is_a_failure(tmp_path):
    before = f"mount -t tmpfs -o ro,size=5m none {tmp_path}"
    line = lines("unshare", "--mount", before=before, folder=tmp_path / "x")["run folder"]

    assert line.startswith("  failed")
    assert "cannot be written to" in line


def test_few_open_files_are_found():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = lines(before="ulimit -Sn 256")["open files"]
    fewest = lines(before="ulimit -n 256")["open files"]

    assert hard == resource.RLIM_INFINITY or hard > 256
    assert few.startswith("  warning")
    assert few.endswith("at most 256. ulimit -n " + few.rpartition(" ")[2])
    assert fewest.startswith("  warning")
    assert "Ask root" in fewest


def test_onednn_that_is_off_is_found(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t: avx2 fma\n")
    if not onednn_variables(tmp_path / "proc/cpuinfo"):
        pytest.skip("tfdist does not ask for oneDNN with this TensorFlow, or on this processor")
    states = {
        value: next(
            finding
            for finding in check_machine(
                tmp_path, {"TF_ENABLE_ONEDNN_OPTS": value} if value else {}, tmp_path
            )
            if finding.check == "oneDNN"
        )
        for value in ("0", "1", "")
    }

    assert (states["0"].state, states["1"].state, states[""].state) == ("warning", "ok", "ok")
    assert states["0"].remedy == "Unset TF_ENABLE_ONEDNN_OPTS"


@contextlib.contextmanager
def control_group(controller, **values):
    """Make a control group of this machine's, with limits."""
    for base in (Path("/sys/fs/cgroup", controller), Path("/sys/fs/cgroup")):
        group = base / f"tfdist-doctor-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            written = {
                name.replace("__", "."): value
                for name, value in values.items()
                if (group / name.replace("__", ".")).exists()
            }
            if written:
                for name, value in written.items():
                    (group / name).write_text(value)
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("may not make a control group")


def in_group(group):
    return f"echo $$ > {group}/cgroup.procs"


def test_a_limit_of_cores_is_found():
    with control_group("cpu", cpu__cfs_quota_us="50000", cpu__max="50000 100000") as group:
        line = lines(before=in_group(group))["cores"]

    assert line.startswith("  warning")
    assert "the time of 0.5" in line
    assert "launch.threads" in line


def test_a_limit_of_memory_is_found():
    with control_group("memory", memory__limit_in_bytes="300000000", memory__max="300000000") as group:
        line = lines(before=in_group(group))["memory"]

    assert line.startswith("  warning")
    assert "MiB available below the limit of its control group" in line


@pytest.mark.parametrize(
    ("files", "cores", "left"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None, None),
        (
            {
                "proc/self/cgroup": "0::/pods/one\n",
                "sys/fs/cgroup/pods/one/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pods/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/pods/memory.max": "1000\n",
                "sys/fs/cgroup/pods/memory.current": "700\n",
                "sys/fs/cgroup/pods/memory.stat": "anon 100\ninactive_file 500\n",
            },
            1.5,
            800,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            },
            2.0,
            None,
        ),
    ],
)
def test_control_groups_of_both_versions_are_read(tmp_path, files, cores, left):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert (core_limit(tmp_path), memory_left(tmp_path)) == (cores, left)


def software(tmp_path, code, seconds=60.0, root=Path("/"), **variables):
    """Check the software where `import tensorflow` runs this code."""
    (tmp_path / "tensorflow.py").write_text(code)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), **variables}
    loaded, findings = check_software(environ, root, seconds=seconds)
    return loaded, {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    ("code", "found", "remedy"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL ended the process", "AVX"),
        (
            "raise ImportError('libcudart.so.12: cannot open')",
            "libcudart.so.12: cannot open",
            "install it again",
        ),
        (
            "raise ModuleNotFoundError(\"No module named 'tensorflow'\")",
            "No module",
            "pip install tensorflow",
        ),
        ("raise ModuleNotFoundError(\"No module named 'jax'\")", "No module", "Unset KERAS_BACKEND"),
        ("import time; time.sleep(60)", "does not load: not done within 0.5 s", "install it again"),
        ("import sys; sys.exit()", "prints no version", "install it again"),
    ],
)
def test_tensorflow_that_does_not_load_is_a_failure(tmp_path, code, found, remedy):
    loaded, findings = software(tmp_path, code, seconds=0.5 if "sleep" in code else 60.0)

    assert loaded.tensorflow == ""
    assert findings["TensorFlow"].state == "failed"
    assert found in findings["TensorFlow"].found
    assert remedy in findings["TensorFlow"].remedy
    assert "GPUs" not in findings


FAKE = """
from types import SimpleNamespace as space
__version__ = "{version}"
keras = space(__version__="3.0", backend=space(backend=lambda: "{backend}"))
config = space(list_physical_devices=lambda kind: [])
test = space(is_built_with_cuda=lambda: False)
"""


def fake(version, backend="tensorflow"):
    return FAKE.format(version=version, backend=backend)


def test_another_backend_of_keras_is_a_failure(tmp_path):
    _, ours = software(tmp_path, fake("2.21.0"))
    _, jax = software(tmp_path, fake("2.21.0", "jax"))

    assert "Keras" not in ours
    assert jax["Keras"].state == "failed"
    assert jax["Keras"].found == "its backend is jax, not tensorflow"
    assert "Unset KERAS_BACKEND" in jax["Keras"].remedy


def test_versions_that_are_not_supported_are_found(tmp_path):
    _, old = software(tmp_path, fake("2.4.0"))
    _, new = software(tmp_path, fake("2.21.0"))

    assert (old["TensorFlow"].state, new["TensorFlow"].state) == ("warning", "ok")
    assert "tested with <2.22,>=2.12" in old["TensorFlow"].found
    assert old["Python"].state == new["Python"].state == "ok"


def test_a_gpu_that_tensorflow_does_not_use_is_found(tmp_path):
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    gpu.parent.mkdir(parents=True)
    gpu.write_text("Model: \t\t NVIDIA A100\n")
    _, found = software(tmp_path, fake("2.21.0"), root=tmp_path)
    _, hidden = software(tmp_path, fake("2.21.0"), root=tmp_path, CUDA_VISIBLE_DEVICES="-1")

    assert found["GPUs"].state == "warning"
    assert "tensorflow[and-cuda]" in found["GPUs"].remedy
    assert found["GPUs"].found == "NVIDIA A100; TensorFlow uses 0"
    assert hidden["GPUs"].state == "ok"
    _, chosen = software(tmp_path, fake("2.21.0"), root=tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert chosen["GPUs"].state == "warning"


def test_what_others_write_obeys_no_terminal():
    finding = Finding(group="Run", check="x", state="failed", found="\x1b[2Jé\n", remedy="Look")

    assert str(finding) == "  failed   x              \\x1b[2Jé\\n. Look"


def test_the_command_prints_lines_or_json(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    text = tfdist("doctor", "--run_dir", tmp_path, PYTHONPATH=path)
    listed = tfdist("doctor", "--json", PYTHONPATH=path)

    assert (text.returncode, listed.returncode) == (2, 2)
    assert text.stdout.startswith("This machine\n  ok       Python ")
    assert "  failed   TensorFlow     does not load: ImportError: broken. " in text.stdout
    findings = json.loads(listed.stdout)
    assert {"group", "check", "state", "found", "remedy"} == set(findings[0])
    assert [finding["check"] for finding in findings if finding["state"] == "failed"] == ["TensorFlow"]
    assert "Traceback" not in text.stderr + listed.stderr
