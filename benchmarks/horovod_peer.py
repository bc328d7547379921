"""Make an environment with Horovod, built for an older TensorFlow with Gloo, and start its tasks."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from environments import is_whole, make, note_whole

import tfdist

__all__ = ["RELEASE", "Horovod", "HorovodError", "install"]

# The last TensorFlow that this Horovod was made for, and what its setup.py builds with.
_BEFORE = ("tensorflow==2.12.1", "setuptools<70", "wheel", "cmake<4", "msgspec>=0.18.6", "PyYAML>=6.0.1")
RELEASE = "horovod==0.28.1"
_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "CXXFLAGS": "-include cstdint",  # its Gloo forgets that header, which compilers from GCC 13 on mind
}
_LINES = 30


class HorovodError(Exception):
    """Report a script that did not run to its end."""


class Horovod(NamedTuple):
    """Run scripts in an environment with Horovod; `problem` is the reason if there is none."""

    place: Path
    problem: str

    def run(self, words: Sequence[str], workers: int, out: Path) -> None:
        """Run a script, as one process or by Horovod's own launcher, with what it says into a file."""
        command = [str(self.place / "bin" / "python"), *words]
        if workers > 1:
            local = ["--gloo", "--network-interfaces", "lo", "-np", str(workers)]
            command = [str(self.place / "bin" / "horovodrun"), *local, *command]
        with out.open("w") as said:
            done = subprocess.run(command, env=self._environ(), stdout=said, stderr=subprocess.STDOUT)
        if done.returncode:
            tail = "\n".join(out.read_text().splitlines()[-_LINES:])
            raise HorovodError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")

    def _environ(self) -> Mapping[str, str]:
        folders = [str(self.place / "bin"), os.environ.get("PATH", "")]
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "8", "OMP_NUM_THREADS": "1"}
        return {
            **os.environ,
            **threads,
            "PATH": os.pathsep.join(folders),
            "PYTHONPATH": str(self.place / "shared"),
            "CUDA_VISIBLE_DEVICES": "-1",
        }


def install(place: Path) -> Horovod:
    """Make the environment, unless it is there; it takes some minutes, for Horovod is compiled."""
    was_whole = is_whole(place)
    if not was_whole:
        make(place)
    # tfdist alone, for its models: what else is installed beside it is of another TensorFlow.
    shared = place / "shared" / "tfdist"
    shared.parent.mkdir(exist_ok=True)
    shared.unlink(missing_ok=True)
    shared.symlink_to(Path(str(tfdist.__file__)).parent)
    if was_whole:
        return Horovod(place, "")
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    path = f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    steps: tuple[tuple[list[str], Mapping[str, str]], ...] = (
        # First, for it says at once whether there is one to be had.
        ([*pip, "index", "versions", "horovod"], {}),
        ([*pip, "install", *_BEFORE], {}),
        ([*pip, "install", "--no-build-isolation", RELEASE], {**_BUILD, "PATH": path}),
    )
    for words, more in steps:
        done = subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
            return Horovod(place, f"not installed: {(said or [f'pip ended with {done.returncode}'])[-1]}")
    note_whole(place)
    return Horovod(place, "")
