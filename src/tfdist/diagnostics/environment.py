"""Describe the software and the machine, with the limits that containers set, without loading TensorFlow."""

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tfdist import __version__
from tfdist._utils.readable_text import size
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
_NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63 for none


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
    limit = _text(root / "sys/fs/cgroup/memory.max").strip()
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
    version = next(iter(_text(driver / "version").splitlines()), "")
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
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:  # another system or version of control groups, or a container that hides it
        return ""


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def core_limit(root: Path) -> float | None:
    """Return how many cores' time this process may use; None without a limit.

    Args:
        root: The folder that has the system's `proc` and `sys`.
    """
    limits = []
    for folder in _folders(root, "cpu"):
        quota, period = (
            _words(folder / "cpu.max")
            or (*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us"))
            or ("max", "0")
        )
        if quota.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """Return how many bytes this process and its neighbours in the control group may still take.

    Files that the system caches count as free, because it gives them up first.
    """
    left = []
    for folder in _folders(root, "memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            left.append(limit - used + _inactive_files(folder))
    return min(left, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it, as far as they are seen."""
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [base / controllers, base / controller] if controllers else [base, base / "unified"]
        group = PurePosixPath(path)
        for place in (group, *group.parents):
            yield from (mount / str(place).lstrip("/") for mount in mounts)


def _inactive_files(folder: Path) -> int:
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return values.get("total_inactive_file", values.get("inactive_file", 0))


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        if (text := _text(folder / name).strip()).isdigit():
            return int(text)
    return None


def _words(path: Path) -> tuple[str, ...]:
    return tuple(_text(path).split())
