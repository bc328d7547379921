"""Describe the software and the machine, as a bug report needs them, without loading TensorFlow."""

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdist import __version__
from tfdist.launcher.environment import SECRET
from tfdist.launcher.resources import own_cores, own_gpus

__all__ = ["bytes_available", "describe_environment", "gpu_names"]

_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "keras", "tf_keras", "tensorflow-datasets"),
    *("numpy", "protobuf", "absl-py", "msgspec", "PyYAML", "rich", "tensorboard", "ray"),
)
# Not all that begins with TF_: Terraform's variables do, and hold passwords.
_VARIABLES = (
    *(
        "TF_CONFIG",
        "TF_CPP_",
        "TF_CUDNN_",
        "TF_DETERMINISTIC_",
        "TF_ENABLE_",
        "TF_FORCE_",
        "TF_GPU_",
        "TF_NUM_",
    ),
    *(
        "TF_USE_LEGACY_KERAS",
        "TF_XLA_",
        "TFDIST_",
        "TFDS_DATA_DIR",
        "CUDA_",
        "NVIDIA_VISIBLE_",
        "KERAS_",
        "XLA_",
    ),
    *("OMP_", "SLURM_JOB_ID", "LD_LIBRARY_PATH"),
)
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")
_GIB = 1 << 30


def describe_environment(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """Return what is installed and what the machine has, by name.

    Args:
        environ: The environment variables. Of a secret, the result only says that it is set.
        root: The folder that has the system's `proc`, `sys` and `dev`.
    """
    return {
        "tfdist": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        **_packages(_PACKAGES),
        "processor": _processor(root / "proc/cpuinfo"),
        "cores": f"{len(own_cores())} of {os.cpu_count()}",
        "memory": _memory(root),
        "shared memory": _room(root / "dev/shm"),
        "disk here": _room(Path.cwd()),
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


def _processor(cpuinfo: Path) -> str:
    return _value(cpuinfo, "model name") or platform.processor() or platform.machine()


def _memory(root: Path) -> str:
    total = _value(root / "proc/meminfo", "MemTotal")
    if not total:
        return "unknown"
    free = _value(root / "proc/meminfo", "MemAvailable") or "0 kB"
    text = f"{_gib(1024 * int(total.split()[0]))}, {_gib(1024 * int(free.split()[0]))} available"
    limit = _text(root / "sys/fs/cgroup/memory.max").strip()
    return f"{text}, limited to {_gib(int(limit))}" if limit.isdigit() else text


def _room(folder: Path) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return f"unknown: {error.strerror}"
    return f"{_gib(usage.free)} free of {_gib(usage.total)}"


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
    version = next(iter(_text(driver / "version").splitlines()), "")
    if not names:
        return "none"
    return ", ".join([*names, version.removeprefix("NVRM version: ").strip()] if version else names)


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = sorted(name for name in environ if name.startswith(_VARIABLES) or name.lower() in _PROXIES)
    # A proxy's address may have a password in it.
    is_hidden = {
        name: name == SECRET or (name.lower() in _PROXIES and "@" in environ[name]) for name in names
    }
    return {name: "(set)" if is_hidden[name] else environ[name] for name in names}


def _value(path: Path, name: str) -> str:
    """Return the value of the first line `name: value` of a file of the system; empty if there is none."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # another system, or a container that hides it
        return ""


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
