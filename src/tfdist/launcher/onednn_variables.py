"""Turn oneDNN on where TensorFlow has it and the processor can use it."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

_FLAGS_FOR_ONEDNN = {"avx2", "fma"}
# Up to 2.14, oneDNN crashed or failed at products and convolutions in bfloat16 with AVX2 alone.
_FIRST_VERSION_WITH_ONEDNN = (2, 15)


def enable_onednn() -> None:
    """Enable oneDNN in this process, and those that it starts, unless the user has set the variable."""
    for name, value in onednn_variables().items():
        os.environ.setdefault(name, value)


def onednn_variables(of_processor: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the variables that enable oneDNN where TensorFlow leaves it off although it is faster with it.

    By default TensorFlow enables it only on x86 processors with AVX-512's instructions for neural networks,
    or newer ones. With AVX2 alone, training was 1.5 to 1.8 times as fast with it (docs/bench.md). TensorFlow
    reads the variable when it is imported, so it must be set before.

    Args:
        of_processor: The file in which the system describes its processors.
    """
    if (
        sys.platform != "linux"
        or platform.machine() != "x86_64"
        or _tensorflow_version() < _FIRST_VERSION_WITH_ONEDNN
    ):
        return {}
    try:
        with of_processor.open(encoding="utf-8") as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), [])
    except OSError:  # a container may hide the file
        return {}
    return {"TF_ENABLE_ONEDNN_OPTS": "1"} if _FLAGS_FOR_ONEDNN.issubset(flags) else {}


def _tensorflow_version() -> tuple[int, ...]:
    """Return the installed version of TensorFlow; empty if it has another package name."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            major, minor, *_ = importlib.metadata.version(name).split(".")
        except importlib.metadata.PackageNotFoundError:
            continue
        return int(major), int(minor)
    return ()
