"""Check the versions of Python, tfdist, TensorFlow and Keras, and that TensorFlow loads and finds the GPUs.

A process of its own loads it: it may crash, as on a processor without AVX, or hang.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tfdist import __version__
from tfdist._utils.run_process import last_line, run_process
from tfdist.diagnostics.doctor.finding import MACHINE, Finding, Findings
from tfdist.diagnostics.environment import gpu_names
from tfdist.strategies.options import UNSET_BACKEND

_SECONDS_TO_LOAD = 180.0
_CODE = """
import json
import tensorflow as tf
print()
print(json.dumps({
    "tensorflow": tf.__version__,
    "keras": tf.keras.__version__,
    "backend": tf.keras.backend.backend(),
    "gpus": len(tf.config.list_physical_devices("GPU")),
}))
"""
_OTHER_BACKENDS = ("jax", "torch", "openvino")  # of Keras
_find = Findings(MACHINE)


class Loaded(msgspec.Struct, frozen=True):
    """The TensorFlow that a process has loaded."""

    tensorflow: str = ""
    keras: str = ""
    backend: str = "tensorflow"
    gpus: int = 0


def check_software(
    environ: Mapping[str, str] = os.environ, root: Path = Path("/"), *, seconds: float = _SECONDS_TO_LOAD
) -> tuple[Loaded, list[Finding]]:
    """Return what loads within some seconds, and what the checks of it find."""
    loaded, problem = _load(environ, seconds)
    findings = [*_own_versions(), *_tensorflow(loaded, problem)]
    if not problem:
        findings.append(_gpus(loaded, environ, root))
    return loaded, findings


def _load(environ: Mapping[str, str], seconds: float) -> tuple[Loaded, str]:
    """Load TensorFlow in a process of its own; return what it saw, and why there is nothing."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2", **environ}
    ended = run_process([sys.executable, "-c", _CODE], seconds=seconds, environ=variables)
    if ended.problem:
        return Loaded(), f"does not load: {ended.problem}"
    try:
        return msgspec.json.decode(last_line(ended.output), type=Loaded), ""
    except msgspec.MsgspecError:
        return Loaded(), "loads, but prints no version"


def _own_versions() -> Iterator[Finding]:
    try:
        wanted = importlib.metadata.metadata("tfdist")["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:  # the source tree, on PYTHONPATH
        wanted = ""
    version = platform.python_version()
    yield _version("Python", f"{version} ({sys.executable})", version, wanted)
    yield _find.ok("tfdist", __version__)


def _version(check: str, found: str, version: str, wanted: str) -> Finding:
    if not wanted or SpecifierSet(wanted).contains(version, prereleases=True):
        return _find.ok(check, found)
    return _find.warning(check, f"{found}; tfdist is tested with {wanted}", f"Install {check} {wanted}")


def _tensorflow(loaded: Loaded, problem: str) -> Iterator[Finding]:
    if problem:
        yield _find.failed("TensorFlow", problem, _remedy_for(problem))
        return
    found = f"{loaded.tensorflow} with Keras {loaded.keras}"
    yield _version("TensorFlow", found, loaded.tensorflow, _range_of("tensorflow"))
    if loaded.backend != "tensorflow":
        yield _find.failed("Keras", f"its backend is {loaded.backend}, not tensorflow", UNSET_BACKEND)


def _range_of(package: str) -> str:
    """Return the versions of a package that tfdist requires, such as >=2.12,<2.22; empty if unknown."""
    try:
        required = map(Requirement, importlib.metadata.requires("tfdist") or ())
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(one.specifier) for one in required if one.name == package), "")


def _remedy_for(problem: str) -> str:
    if "SIGILL" in problem:
        return "This processor lacks instructions (AVX) of that build: use another machine or build"
    if "No module named 'tensorflow'" in problem:
        return "pip install tensorflow"
    if any(f"No module named '{backend}'" in problem for backend in _OTHER_BACKENDS):
        return UNSET_BACKEND
    return "See python -c 'import tensorflow', and install it again: pip install --force-reinstall tensorflow"


def _gpus(loaded: Loaded, environ: Mapping[str, str], root: Path) -> Finding:
    names, hidden = gpu_names(root / "proc/driver/nvidia"), environ.get("CUDA_VISIBLE_DEVICES")
    seen = f"TensorFlow uses {loaded.gpus}"
    if not names:
        return _find.ok("GPUs", seen if loaded.gpus else "none")
    found = f"{', '.join(names)}; {seen}"
    expected = len(names)
    if hidden is not None:
        found += f", with CUDA_VISIBLE_DEVICES={hidden}"
        visible = [name for name in hidden.split(",") if name.strip() and not name.strip().startswith("-")]
        expected = min(expected, len(visible))
    remedy = "Install TensorFlow with its CUDA libraries: pip install 'tensorflow[and-cuda]'"
    return _find.warning_if(loaded.gpus < expected, "GPUs", found, remedy)
