"""Check this machine: cores, memory, files, disks. The software is checked in check_software.py."""

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfdist._utils.check_and_expand_paths import default_cache_dir, exists
from tfdist._utils.readable_text import size
from tfdist.diagnostics.control_group_limits import core_limit, memory_left
from tfdist.diagnostics.doctor.finding import MACHINE, Finding, Findings, failure_of
from tfdist.diagnostics.environment import bytes_available
from tfdist.errors import ConfigError
from tfdist.launcher.onednn_variables import onednn_variables
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus

_GIB = 1 << 30
_LEAST_MEMORY, _LEAST_DISK = 1 * _GIB, 1 * _GIB
_DOCKERS_SHARED_MEMORY, _NCCLS_SHARED_MEMORY = 64 << 20, 1 * _GIB  # NVIDIA's advice for containers
_LEAST_FILES = 1024
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_find = Findings(MACHINE)


def check_machine(
    run_folder: Path, environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> Iterator[Finding]:
    """Yield what the checks of this machine find, without loading TensorFlow.

    Args:
        run_folder: The folder that a run would write to; it need not exist.
        environ: The environment variables.
        root: The folder that has the system's `proc`, `sys` and `dev`.
    """
    yield _cores(root)
    yield _memory(root)
    if sys.platform == "linux":  # other systems have no /dev/shm
        yield _shared_memory(root)
    yield _memory_files()
    yield _open_files()
    yield _disk("run folder", run_folder, "Free disk space, or name another folder by --run_dir")
    try:
        yield _disk("cache folder", default_cache_dir(), "Free disk space, or set TFDIST_CACHE_DIR")
    except ConfigError as error:
        yield failure_of(MACHINE, "cache folder", error)
    yield _onednn(environ, root)


def existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if exists(place))


def _cores(root: Path) -> Finding:
    own, limit = len(own_cores()), core_limit(root)
    found = f"this process may use {own} of {os.cpu_count()}"
    if limit is None:
        return _find.ok("cores", found)
    found += f", and the time of {limit:g}, which its control group allows"
    remedy = f"Set launch.threads, or TF_NUM_INTRAOP_THREADS, to {max(1, int(limit))}"
    # TensorFlow starts a thread for each core, and the system stops them all when their time is used up.
    return _find.warning_if(limit < own, "cores", found, remedy)


def _memory(root: Path) -> Finding:
    free, left = bytes_available(root), memory_left(root)
    known = [count for count in (free, left) if count is not None]
    if not known:
        return _find.ok("memory", "the system does not tell what is available")
    least = min(known)
    found = f"{size(least)} available" + (" below the limit of its control group" if least == left else "")
    remedy = f"End other programs, or give this one more: a task with TensorFlow takes up to {size(_GIB)}"
    return _find.warning_if(least < _LEAST_MEMORY, "memory", found, remedy)


def _shared_memory(root: Path) -> Finding:
    folder, gpus = root / "dev/shm", len(own_gpus())
    needed = _NCCLS_SHARED_MEMORY if gpus > 1 else _DOCKERS_SHARED_MEMORY
    readers = "NCCL between GPUs needs it" if gpus > 1 else "Python's multiprocessing and NCCL use it"
    remedy = "Mount a larger one (docker run --shm-size=1g; a medium: Memory volume in Kubernetes)"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return _find.warning("shared memory", f"{folder}: {error.strerror}; {readers}", remedy)
    found = f"{folder}: {size(usage.free)} free of {size(usage.total)}"
    too_small = usage.free < needed
    return _find.warning_if(too_small, "shared memory", f"{found}; {readers}" if too_small else found, remedy)


def _memory_files() -> Finding:
    """Try the memory files (memfd) in which tasks of one machine pass tensors."""
    problem = ""
    try:
        os.close(os.memfd_create("tfdist-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except AttributeError:
        problem = "this system has none"
    except OSError as error:
        problem = str(error.strerror)
    if not problem:
        return _find.ok("memory files", "tasks of this machine can pass tensors in memory (memfd)")
    found = f"{problem}: tasks of this machine send tensors over TCP, which is slower"
    return _find.warning("memory files", found, "Use Linux, and a seccomp profile with memfd_create")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _find.ok("open files", "unlimited")
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    remedy = f"ulimit -n {wanted}" if wanted > soft else "Ask root for a higher limit (limits.conf)"
    return _find.warning_if(soft < _LEAST_FILES, "open files", f"at most {soft}", remedy)


def _disk(check: str, folder: Path, remedy: str) -> Finding:
    place = existing_parent(folder)
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return _find.failed(check, f"{place}: {error.strerror}", remedy)
    found = f"{folder}: {size(free)} free"
    try:  # quotas and read-only disks show only when something is written
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))
    except OSError as error:
        return _find.failed(check, f"{found}, but {place} cannot be written to: {error.strerror}", remedy)
    return _find.warning_if(free < _LEAST_DISK, check, found, remedy)


def _onednn(environ: Mapping[str, str], root: Path) -> Finding:
    helps = bool(onednn_variables(root / "proc/cpuinfo"))
    value = environ.get(_ONEDNN)
    if helps and value == "0":
        found = f"{_ONEDNN}=0 switches it off, though this processor trains faster with it"
        return _find.warning("oneDNN", found, f"Unset {_ONEDNN}")
    if helps:
        return _find.ok("oneDNN", "on")
    how = "TensorFlow's own choice" if value is None else f"as {_ONEDNN}={value} says"
    return _find.ok("oneDNN", f"{how}: no other is known to be faster on this processor")
