"""Run the commands of a training, and read from what they print how it goes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from processes import outside_seconds, own_seconds

__all__ = ["ONE_THREAD", "Run", "watched"]

ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "8",  # collectives wait in threads of theirs
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class Run(NamedTuple):
    """Record how a run went.

    Attributes:
        reached: Seconds until an evaluation had found the accuracy that was asked for.
        whole: Seconds to the end of all processes.
        cpu: What they have taken of the cores' time, in seconds.
        steps: The step of the last evaluation.
        accuracy: What it found.
        outside: Others' share of the cores' time.
    """

    reached: float | None
    whole: float
    cpu: float
    steps: int
    accuracy: float
    outside: float


def watched(commands: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]], until: float) -> Run:
    """Start the commands, the first of which prints lines of JSON or of tfdist's log; watch them end."""
    begun, before, own = time.monotonic(), outside_seconds(), own_seconds()
    processes = [
        subprocess.Popen(
            words,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE if number == 0 else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if number == 0 else subprocess.DEVNULL,
            text=True,
        )
        for number, (words, environ) in enumerate(zip(commands, environs, strict=True))
    ]
    reached, steps, accuracy, said = None, 0, 0.0, []
    for line in processes[0].stdout or ():
        said.append(line)
        found = _evaluation(line)
        if found is not None:
            steps, accuracy = found
            if reached is None and accuracy >= until:
                reached = time.monotonic() - begun
    if any(each.wait() for each in processes):
        sys.exit(f"{' '.join(commands[0])} failed:\n{''.join(said[-30:])}")
    whole = time.monotonic() - begun
    cpu = own_seconds() - own
    outside = (outside_seconds() - before) / (whole * (os.cpu_count() or 1))
    return Run(reached, whole, cpu, steps, accuracy, max(0.0, outside))


def _evaluation(line: str) -> tuple[int, float] | None:
    """Read the step and the accuracy of an evaluation out of a line, where it tells of one."""
    if line.startswith("{"):
        said = json.loads(line)
        return said["step"], round(said["accuracy"], 4)
    if ": test loss " in line and " step " in line:
        step, _, rest = line.partition(" step ")[2].partition(" of ")
        return int(step), float(rest.rpartition("accuracy ")[2])
    return None
