"""Measure what checkpoints cost a step: no checkpoints, those that it waits for, those in the background.

    python benchmarks/checkpoint_pause.py [--rounds 5] [--megabytes 120]

One process trains dense layers of so many megabytes, with Adam, whose moments triple what a checkpoint holds.
The three ways take turns, each in a new process. The time of all steps and of the last checkpoint counts, but
not that of the first steps, which trace.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import machine, put, spread, table

WAYS = {"none": None, "training waits": False, "in the background": True}
STEPS, EVERY, TRACED, WIDTH = 60, 20, 5, 1024


def measure(way: str, megabytes: int, folder: Path) -> dict[str, float]:
    """Train in this process, and return seconds per step, and the megabytes of a checkpoint."""
    import numpy as np
    import tensorflow as tf

    import tfdist

    layers = max(1, round(megabytes * 2**20 / 4 / WIDTH**2))
    model = tf.keras.Sequential(
        [tf.keras.Input((WIDTH,)), *[tf.keras.layers.Dense(WIDTH) for _ in range(layers)]]
    )
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensors((np.zeros((64, WIDTH), "float32"),) * 2).repeat()
    tfdist.fit(model, data, steps_per_epoch=TRACED, verbose=0)
    background = WAYS[way]
    callbacks = (
        [] if background is None else [tfdist.CheckpointAndResume(folder, EVERY, background=background)]
    )
    began = time.monotonic()
    tfdist.fit(model, data, steps_per_epoch=STEPS, callbacks=callbacks, verbose=0)
    seconds = (time.monotonic() - began) / STEPS
    newest = max(folder.iterdir(), default=folder, key=lambda path: path.stat().st_mtime)
    return {"seconds": seconds, "megabytes": sum(file.stat().st_size for file in newest.iterdir()) / 1e6}


def in_new_process(way: str, megabytes: int) -> dict[str, float]:
    """Measure a way in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, f"--megabytes={megabytes}", f"--way={way}", f"--folder={folder}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Read the flags; measure one way, or all in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=120, help="of the model's weights")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.way:
        print(json.dumps(measure(flags.way, flags.megabytes, flags.folder)))
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rounds = [{way: in_new_process(way, flags.megabytes) for way in WAYS} for _ in range(flags.rounds)]
    size = max(found["megabytes"] for each in rounds for found in each.values())
    rows = []
    for way in WAYS:
        times = [1000 * each[way]["seconds"] for each in rounds]
        ratios = [each[way]["seconds"] / each["none"]["seconds"] for each in rounds]
        rows.append([way, spread(times, ".0f"), "1" if way == "none" else spread(ratios, ".2f")])
    what = f"A checkpoint of {size:.0f} MB every {EVERY} of {STEPS} steps, n = {flags.rounds}"
    put(
        "checkpoint pause",
        f"{what}; {machine()}.",
        table(["checkpoints", "ms per step, with all checkpoints on the disk", "ratio to none"], rows),
    )


if __name__ == "__main__":
    main()
