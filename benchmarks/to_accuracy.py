"""Train the MNIST CNN to 99.0 % test accuracy on two workers: with tfdist, and with tf_keras's own fit.

    python benchmarks/to_accuracy.py [--seeds 5] [--accuracy 0.99]

Both sides train the same model with the same batch, optimizer and schedule on the same images, a worker on
each of two cores, and evaluate on all test images after every {every} steps; with the first evaluation that
finds enough, they end. tf_keras's side is what TensorFlow's guides write: fit under
MultiWorkerMirroredStrategy. The wall time is from the command on, imports and all: until the accuracy is
known, and until all processes have ended with the model on the disk. The sides take turns; a run in which
others kept a core busy is run again. tf_keras has to be installed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from results import machine, put, spread, table
from rounds import alone
from watching import ONE_THREAD, Run, watched

from tfdist.cluster.config import ClusterConfig
from tfdist.datasets.open_data import open_data
from tfdist.launcher.onednn_variables import enable_onednn

PEER = Path(__file__).parent / "peers" / "to_accuracy.py"
WORKERS = 2
RECIPE = {"batch": 128, "rate": 0.05, "steps": 1404, "every": 117}
MOST_OUTSIDE = 0.05  # of the cores' time


def ours(folder: Path, seed: int, until: float) -> Run:
    """Type the command of the main job."""
    config = {
        "cluster": {"worker": WORKERS},
        "strategy": {"name": "multi_worker_mirrored"},
        "launch": {"pin": True, "threads": 1},
        "data": {"name": "mnist", "batch_size": RECIPE["batch"]},
        "model": {"name": "mnist_cnn"},
        "train": {
            "steps": RECIPE["steps"],
            "until_accuracy": until,
            "optimizer": "momentum",
            "learning_rate": RECIPE["rate"],
            "schedule": "cosine",
            "steps_per_execution": 10,
            "seed": seed,
        },
        "evaluation": {"every": RECIPE["every"]},
        "checkpoint": {"every": RECIPE["steps"]},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "tfdist.train", "--config", str(file), "--run_dir", str(folder / "run")]
    return watched([words], [{}], until)


def theirs(folder: Path, seed: int, until: float) -> Run:
    """Start the two tasks of the guides' script, as a shell script would."""
    split = {
        f"{name}_{part}": str(getattr(open_data("mnist").split(name), part))
        for name in ("train", "test")
        for part in ("images", "labels")
    }
    order = {**RECIPE, **split, "until": until, "seed": seed, "folder": str(folder)}
    cluster = ClusterConfig.local(workers=WORKERS)
    cores = sorted(os.sched_getaffinity(0))
    tasks = cluster.tasks()
    words = [sys.executable, str(PEER), json.dumps(order)]
    pinned = [["taskset", "-c", str(cores[number % len(cores)]), *words] for number in range(len(tasks))]
    return watched(
        pinned, [{**ONE_THREAD, "TF_CONFIG": cluster.tf_config_json(*each)} for each in tasks], until
    )


def pair(seed: int, flags: Any) -> tuple[Run, Run]:
    """Run both sides with a seed, each again where others were on the cores."""
    runs = {}
    for side in (ours, theirs) if seed % 2 == 0 else (theirs, ours):

        def run(side: Callable[[Path, int, float], Run] = side) -> Run:
            with tempfile.TemporaryDirectory(prefix="to-accuracy-") as name:
                found = side(Path(name), seed, flags.accuracy)
            print(f"seed {seed}: {side.__name__} {found}", flush=True)
            return found

        runs[side] = alone(run, lambda found: found.outside, flags.others)
    return runs[ours], runs[theirs]


def rows_of(pairs: Sequence[tuple[Run, Run]]) -> list[list[str]]:
    """Make a row for each side, and one of the ratios."""
    rows = []
    for title, runs in zip(("tfdist", "tf_keras fit"), zip(*pairs, strict=True), strict=True):
        reached = [each.reached for each in runs if each.reached is not None]
        cells = [
            title,
            f"{len(reached)} of {len(runs)}",
            spread([each.steps for each in runs], ".0f"),
            spread(reached, ".1f", " s") if reached else "never",
            spread([each.whole for each in runs], ".1f", " s"),
        ]
        rows.append(cells)
    both = [
        (us.reached / them.reached, us.whole / them.whole)
        for us, them in pairs
        if us.reached and them.reached
    ]
    if both:
        until, whole = (spread(each, ".2f") for each in zip(*both, strict=True))
        rows.append(["tfdist / tf_keras", "", "", until, whole])
    return rows


def main() -> None:
    """Read the flags, measure in turns, and put the table into the page."""
    text = (__doc__ or "").format(**RECIPE)
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--accuracy", type=float, default=0.99)
    parser.add_argument("--others", type=float, default=MOST_OUTSIDE, help="share of the cores for others")
    flags: Any = parser.parse_args()
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    pairs = [pair(seed, flags) for seed in range(flags.seeds)]
    head = (
        f"Median and range of {flags.seeds} seeds, in turns; MNIST, `mnist_cnn`, {RECIPE['batch']} examples a"
        f" step, SGD with momentum, {RECIPE['rate']} falling by a cosine over {RECIPE['steps']} steps, and an"
        f" evaluation every {RECIPE['every']}; a core for each of {WORKERS} workers; {machine('tf_keras')}."
    )
    columns = ("", f"came to {flags.accuracy:.1%}", "steps", "until it was known", "whole command")
    put("to accuracy", head, table(columns, rows_of(pairs)))
    if any(us.reached is None for us, _ in pairs):
        sys.exit(f"tfdist has not come to {flags.accuracy:.1%} with each of the seeds")


if __name__ == "__main__":
    main()
