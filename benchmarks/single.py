"""Train in one process on one core: with tfdist, with Keras's own fit, and with PyTorch.

    python benchmarks/single.py [--rounds 5] [--steps 200] [--core 1] [--others 0.05] [--works NAME …]

Each side trains the same model on the same data with the same batch, its input pipeline included, pinned to
one core and with one thread. tfdist is the real command, `python -m tfdist.train`. The sides take turns; a
run whose wall time was not its own CPU time (somebody else was on the core) is done again. PyTorch gets
an environment of its own, made by this script; where that fails, the tables say so. Each table goes into
docs/results.md when it is there.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from environments import Torch, torch_in
from results import machine, put, spread, table
from rounds import alone
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tfdist.datasets.open_data import open_data
from tfdist.launcher.onednn_variables import enable_onednn

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"
_BATCH = 128
_ALONE = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class Work(NamedTuple):
    """Describe what is trained."""

    config: str
    model: str
    augment: str
    optimizer: str
    rate: float

    @property
    def name(self) -> str:
        """Return the name by which the command line selects it."""
        return f"{self.model}-{self.optimizer}"


class Run(NamedTuple):
    """Record what a run took: for a step, in seconds of the clock and of the CPU, and as a whole."""

    wall: float
    cpu: float
    whole: float


WORKS = (
    Work("cifar10-local.yaml", "cifar10_cnn", "cifar10_2016", "momentum", 0.01),
    Work("local.yaml", "mnist_cnn", "none", "momentum", 0.01),
    Work("local.yaml", "mnist_cnn", "none", "adam", 1e-3),
)


def main() -> None:
    """Read the flags, measure in turns, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument(
        "--others", type=float, default=0.05, help="share of the wall time that others may have had"
    )
    parser.add_argument("--peers", type=Path, help="keep the peers' environments here, for the next time")
    names = [work.name for work in WORKS]
    parser.add_argument(
        "--works", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    flags = parser.parse_args()
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    with tempfile.TemporaryDirectory(prefix="single-") as name:
        torch = torch_in((flags.peers or Path(name)) / "torch")
        for work in WORKS:
            if work.name in flags.works:
                put(f"single {work.name}", _head(flags, torch), _part(work, flags, Path(name), torch))


def _head(flags: argparse.Namespace, torch: Torch) -> str:
    return (
        f"Median and range of {flags.rounds} rounds, in turns; {flags.steps} steps of {_BATCH}, the last"
        f" three quarters of which are counted; one of {machine('keras')}, PyTorch"
        f" {torch.version or torch.problem}."
    )


def _part(work: Work, flags: argparse.Namespace, folder: Path, torch: Torch) -> str:
    """Run all sides of one kind of work in turns; give a table."""
    with_normalization = work.model == "cifar10_cnn"
    stock = {"fused_normalization": False} if with_normalization else {}
    measured = functools.partial(_measured, work, flags, folder)
    sides = {"tfdist": measured}
    sides["Keras fit"] = functools.partial(measured, script="single_keras.py", options=stock)
    if with_normalization:
        sides["Keras fit, tfdist's normalisation"] = functools.partial(measured, script="single_keras.py")
    if torch.version:
        by_torch = functools.partial(measured, script="single_torch.py", python=torch.python)
        sides["PyTorch"] = functools.partial(by_torch, fast=False)
        if with_normalization:
            sides["PyTorch, tfdist's normalisation"] = by_torch
    found: dict[str, list[Run]] = {name: [] for name in sides}
    for number in range(flags.rounds):
        for name, run in sides.items():
            found[name].append(run(number=number))
            print(f"{work.model}, {work.optimizer}, {name}: {found[name][-1]}", flush=True)
    rows = [_row(name, runs, found["tfdist"]) for name, runs in found.items()]
    columns = (f"`{work.model}`, {work.optimizer}", "examples/s", "CPU ms a step", "ratio", "whole")
    return table(columns, rows)


def _row(name: str, runs: list[Run], ours: list[Run]) -> list[str]:
    pairs = list(zip(ours, runs, strict=True))
    ratios = [
        [theirs.wall / our.wall for our, theirs in pairs],
        [them.whole / us.whole for us, them in pairs],
    ]
    return [
        name,
        spread([_BATCH / run.wall for run in runs], ".0f"),
        spread([1000 * run.cpu for run in runs], ".1f"),
        *("" if runs is ours else spread(each, ".2f") for each in ratios),
    ]


def _measured(
    work: Work,
    flags: argparse.Namespace,
    folder: Path,
    *,
    number: int,
    script: str = "",
    options: dict[str, Any] | None = None,
    fast: bool = True,
    python: Path | str = sys.executable,
) -> Run:
    """Run one side, again where others were on the core."""

    def once() -> Run:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            if not script:
                return _tfdist(work, flags, Path(name), number)
            asked = _asked(work, flags.steps, f"{name}/export") | {"options": options or {}, "fast": fast}
            return _peer([str(python), str(PEERS / script), json.dumps(asked)], flags, Path(name))

    return alone(once, lambda run: 1 - run.cpu / run.wall, flags.others)


def _asked(work: Work, steps: int, folder: str) -> dict[str, Any]:
    data = open_data(*_data(work))
    files = {
        f"{split}_{part}": str(getattr(data.split(split), part))
        for split in ("train", "test")
        for part in ("images", "labels")
    }
    return work._asdict() | files | {
        "image_shape": data.image_shape, "batch": _BATCH, "steps": steps, "folder": folder
    }  # fmt: skip


def _data(work: Work) -> tuple[str, ...]:
    return ("cifar10",) if work.model == "cifar10_cnn" else ("mnist",)


def _started(words: list[str], core: int, said: Path, out: int | None = None) -> subprocess.Popen[str]:
    environ = {**os.environ, **_ALONE}
    with said.open("w") as file:
        process = subprocess.Popen(words, env=environ, stdout=out or file, stderr=file, text=True)
    os.sched_setaffinity(process.pid, {core})  # before it has threads, which inherit it
    return process


def _check(process: subprocess.Popen[str], words: list[str], said: Path) -> None:
    if process.returncode:
        lines = said.read_text(errors="replace").splitlines()
        sys.exit("\n".join([f"{' '.join(words)} ended with {process.returncode}:", *lines[-20:]]))


def _peer(words: list[str], flags: argparse.Namespace, folder: Path) -> Run:
    begun = time.monotonic()
    process = _started(words, flags.core, folder / "said", subprocess.PIPE)
    told, _ = process.communicate()
    whole = time.monotonic() - begun
    _check(process, words, folder / "said")
    stamps = [json.loads(line) for line in told.splitlines() if line.startswith("[")]
    (first_wall, first_cpu), (last_wall, last_cpu) = stamps[0], stamps[-1]
    steps = flags.steps // 4 * 3
    return Run((last_wall - first_wall) / steps, (last_cpu - first_cpu) / steps, whole)


def _tfdist(work: Work, flags: argparse.Namespace, folder: Path, seed: int) -> Run:
    """Run the command; its curves say when steps were done, and the system how much CPU it had taken then."""
    quarter = flags.steps // 4
    changes = [
        f"train.steps={quarter * 4}",
        f"train.optimizer={work.optimizer}",
        f"train.learning_rate={work.rate}",
        f"train.seed={seed}",
        "train.schedule=constant",
        "data.if_unavailable=fail",
        f"data.batch_size={_BATCH}",
        f"summaries.every={quarter}",
    ]
    words = [sys.executable, "-m", "tfdist.train", "--config", str(ROOT / "configs" / work.config)]
    words += ["--run_dir", str(folder / "run"), *(f"--set={change}" for change in changes)]
    begun = time.monotonic()
    process = _started(words, flags.core, folder / "said")
    used = [(0.0, 0.0)]
    while process.poll() is None:
        used.append((time.time(), _cpu_seconds(process.pid, used[-1][1])))
        time.sleep(0.02)
    whole = time.monotonic() - begun
    _check(process, words, folder / "said")
    [file] = (folder / "run" / "summaries" / "train").iterdir()
    points = {event.step: event.wall_time for event in EventFileLoader(str(file)).Load() if event.step}
    first, last = min(points), max(points)  # whole executions of some steps
    wall = points[last] - points[first]
    cpu = _at(used, points[last]) - _at(used, points[first])
    return Run(wall / (last - first), cpu / (last - first), whole)


def _cpu_seconds(process: int, before: float) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return before  # it has ended
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _at(used: list[tuple[float, float]], moment: float) -> float:
    return max(cpu for when, cpu in used if when <= moment)


if __name__ == "__main__":
    main()
