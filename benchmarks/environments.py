"""Make environments for peers, each in a folder of its own, and find those again that were made before."""

import subprocess
import venv
from pathlib import Path
from typing import NamedTuple

__all__ = ["Torch", "is_whole", "make", "note_whole", "torch_in"]

_WHOLE = "whole"  # a file


class Torch(NamedTuple):
    """Describe an environment with PyTorch: its Python and version, or why there is none."""

    python: str
    version: str
    problem: str


def torch_in(place: Path) -> Torch:
    """Make an environment with PyTorch, unless it is there."""
    python = str(place / "bin" / "python")
    if not is_whole(place):
        make(place)
        words = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "torch", "numpy"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return Torch(python, "", f"not installed: {done.stderr.strip().splitlines()[-1]}")
        note_whole(place)
    words = [python, "-c", "import torch; print(torch.__version__)"]
    return Torch(python, subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip(), "")


def make(place: Path) -> None:
    """Make an empty environment."""
    venv.create(place, with_pip=True, clear=True)  # what is there is the half of one


def note_whole(place: Path) -> None:
    """Note that all of an environment is there."""
    (place / _WHOLE).touch()


def is_whole(place: Path) -> bool:
    """Return whether that was noted."""
    return (place / _WHOLE).exists()
