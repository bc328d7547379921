"""Describe the software and the machine, without loading TensorFlow."""

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdist import __version__
from tfdist._utils.readable_text import size
from tfdist.diagnostics.control_group_limits import text_of
from tfdist.launcher.environment import SECRET
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus

_PACKAGES = (
    "tensorflow", "tensorflow-cpu", "keras", "tf_keras", "tensorflow-datasets",
    "numpy", "protobuf", "absl-py", "msgspec", "PyYAML", "rich", "tensorboard", "ray",
)  # fmt: skip
# Not all that begins with TF_: Terraform's variables do, and hold passwords.
_VARIABLES = (
    "TF_CONFIG", "TF_CPP_", "TF_CUDNN_", "TF_DETERMINISTIC_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_NUM_",
    "TF_USE_LEGACY_KERAS", "TF_XLA_", "TFDIST_", "TFDS_DATA_DIR", "CUDA_", "NVIDIA_VISIBLE_", "KERAS_",
    "XLA_", "OMP_", "SLURM_JOB_ID", "LD_LIBRARY_PATH",
)  # fmt: skip
_WHOLE_FILES = ("TFDIST_CONFIG_", "TFDIST_JOB_SCRIPT")
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")


def describe_environment(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """Return what is installed and what the machine has, by name.

    Args:
        environ: The environment variables. Of a secret, the result only says that it is set.
        root: The folder that has the system's `proc`, `sys` and `dev`.
    """
    model = _value(root / "proc/cpuinfo", "model name")
    return {
        "tfdist": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        **_packages(_PACKAGES),
        "processor": model or platform.processor() or platform.machine(),
        "cores": f"{len(own_cores())} of {os.cpu_count()}",
        "memory": _memory(root),
        "shared memory": _room(root / "dev/shm"),
        "disk here": _room(Path()),
        "open files": " of at most ".join(map(_count, resource.getrlimit(resource.RLIMIT_NOFILE))),
        "gpus": _gpus(root / "proc/driver/nvidia"),
        **_variables(environ),
    }


def _packages(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _memory(root: Path) -> str:
    total = _value(root / "proc/meminfo", "MemTotal")
    if not total:
        return "unknown"
    text = f"{size(1024 * int(total.split()[0]))}, {size(bytes_available(root) or 0)} available"
    limit = text_of(root / "sys/fs/cgroup/memory.max").strip()
    return f"{text}, limited to {size(int(limit))}" if limit.isdigit() else text


def _room(folder: Path) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return f"unknown: {error.strerror}"
    return f"{size(usage.free)} free of {size(usage.total)}"


def bytes_available(root: Path = Path("/")) -> int | None:
    """Return how many bytes of memory programs may take without swapping; None if unknown."""
    text = _value(root / "proc/meminfo", "MemAvailable")
    return 1024 * int(text.split()[0]) if text else None


def gpu_names(driver: Path) -> list[str]:
    """Return the names of the GPUs that the driver lists, or else the numbers of those that are visible."""
    models = [_value(path, "Model") for path in sorted(driver.glob("gpus/*/information"))]
    return [model for model in models if model] or [f"GPU {name}" for name in own_gpus()]


def _gpus(driver: Path) -> str:
    names = gpu_names(driver)
    version = next(iter(text_of(driver / "version").splitlines()), "")
    if not names:
        return "none"
    return ", ".join([*names, version.removeprefix("NVRM version: ").strip()] if version else names)


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = sorted(name for name in environ if name.startswith(_VARIABLES) or name.lower() in _PROXIES)
    # A proxy's address may have a password in it, and a config or a script all that a container gets.
    is_hidden = {
        name: name == SECRET
        or name.startswith(_WHOLE_FILES)
        or (name.lower() in _PROXIES and "@" in environ[name])
        for name in names
    }
    return {name: "(set)" if is_hidden[name] else environ[name] for name in names}


def _value(path: Path, name: str) -> str:
    """Return the value of the first line `name: value` of a file of the system; empty if there is none."""
    for line in text_of(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
