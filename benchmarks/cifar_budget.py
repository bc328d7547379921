"""Train CIFAR-10 on two cores: how well by configs/cifar10-fast.yaml, and by Keras's own recipe for as long?

    python benchmarks/cifar_budget.py [--minutes 20] [--epochs 7 24] [--runs 1]

The budget is CPU time, so many minutes of each core: what others on the machine take does not count. tfdist
types the command, once with the epochs that fit into the budget and once with more, and says how well and
after how long. Keras's side is the recipe that it published for its small residual network: ResNet20, Adam,
32 examples a step, shifted and mirrored; it trains by Keras 3's fit on both cores until the budget is used
up, and then evaluates. All takes about five times the minutes for each of the runs.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from results import machine, put, spread, table
from watching import Run, watched

from tfdist.datasets.open_data import open_data
from tfdist.launcher.onednn_variables import enable_onednn

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "cifar10-fast.yaml"
PEER = Path(__file__).parent / "peers" / "cifar_keras.py"


def ours(epochs: int, seed: int) -> Run:
    """Type the command of the main job."""
    with tempfile.TemporaryDirectory(prefix="cifar-") as folder:
        words = [sys.executable, "-m", "tfdist.train", "--config", str(CONFIG), "--run_dir", folder]
        changes = {"data.if_unavailable": "fail", "train.epochs": epochs, "train.seed": seed}
        words += [f"--set={name}={value}" for name, value in changes.items()]
        return watched([words], [{}], until=1.0)


def theirs(minutes: float, seed: int) -> Run:
    """Train with Keras until it has had so many minutes of each core."""
    prepared = open_data("cifar10")
    files = {
        f"{split}_{part}": str(getattr(prepared.split(split), part))
        for split in ("train", "test")
        for part in ("images", "labels")
    }
    order = {**files, "seconds": 60 * minutes * (os.cpu_count() or 1), "seed": seed}
    environ = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return watched([[sys.executable, str(PEER), json.dumps(order)]], [environ], until=1.0)


def row(title: str, examples: int, runs: Sequence[Run]) -> list[str]:
    """Make a row of the page's table."""
    return [
        title,
        spread([each.steps * examples / 50_000 for each in runs], ".1f"),
        spread([each.accuracy for each in runs], ".2%"),
        spread([each.whole / 60 for each in runs], ".1f"),
        spread([each.cpu / 60 for each in runs], ".1f"),
        f"{max(each.outside for each in runs):.0%}",
    ]


def main() -> None:
    """Read the flags, train in turns, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--epochs", type=int, nargs="+", default=[7, 24])
    parser.add_argument("--runs", type=int, default=1)
    flags: Any = parser.parse_args()
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    found: dict[str, list[Run]] = {}
    ways: dict[str, Callable[[int], Run]] = {
        f"tfdist, {epochs} epochs": functools.partial(ours, epochs) for epochs in flags.epochs
    }
    ways["Keras's ResNet20, Keras 3 fit"] = functools.partial(theirs, flags.minutes)
    for seed in range(flags.runs):
        for title, way in ways.items():
            run = way(seed)
            found.setdefault(title, []).append(run)
            print(f"{title}: {run}", flush=True)
    rows = [row(title, 256 if title.startswith("tfdist") else 32, runs) for title, runs in found.items()]
    head = (
        f"{flags.runs} run{'s' * (flags.runs > 1)} of each; minutes are of the whole command, imports,"
        f" evaluations and export included; {machine('keras')}."
    )
    columns = ("", "epochs", "test accuracy", "minutes", "CPU minutes", "others")
    put("cifar budget", head, table(columns, rows))


if __name__ == "__main__":
    main()
