"""Have TensorFlow compute with oneDNN where it would leave it off though the processor is faster with it.

By itself TensorFlow takes oneDNN only on x86 processors with AVX-512's instructions for neural networks, or
newer ones. With AVX2 alone training was 1.5 to 1.8 times as fast with it (docs/bench.md). What is asked for
is read while TensorFlow is imported: afterwards it is too late.
"""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

__all__ = ["ask_for", "variables"]

_ENOUGH = {"avx2", "fma"}
# Up to 2.14, oneDNN ended the process, or failed, at products and convolutions in bfloat16 with AVX2 alone.
_SINCE = (2, 15)


def ask_for() -> None:
    """Ask for it in this process, and those that it starts, unless the user has said something."""
    for name, value in variables().items():
        os.environ.setdefault(name, value)


def variables(of_processor: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Give the variables to set on this machine, where the user sets none of that name; often there are none.

    Args:
        of_processor: What the system says of its processors.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or _tensorflow() < _SINCE:
        return {}
    try:
        with of_processor.open() as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), [])
    except OSError:  # a container may hide it
        return {}
    return {"TF_ENABLE_ONEDNN_OPTS": "1"} if _ENOUGH.issubset(flags) else {}


def _tensorflow() -> tuple[int, ...]:
    """Give the version that is installed, and nothing where it goes by another name."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            major, minor, *_ = importlib.metadata.version(name).split(".")
        except importlib.metadata.PackageNotFoundError:
            continue
        return int(major), int(minor)
    return ()
