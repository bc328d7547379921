"""Train an embedding of ten million rows: the time of a step by optimizer, and the memory of the chief.

    python benchmarks/large_embedding.py [--rounds 3] [--rows 10000000] [--strategies parameter_server]

A model of an `Embedding` and a `Dense` layer trains on 2 ps tasks with one worker. A step reads at most 5,120
rows. In each round every optimizer has a turn, and its step is compared with that of SGD in the same round.
The memory of the chief is the most that it has, less what it had before the model was made. On the page it
replaces the section "large embedding".
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results import machine, put, spread, table

OPTIMIZERS = ("SGD", "Adagrad", "LazyAdam", "Adam")
WIDTH, WORDS, BATCH, STEPS = 16, 20, 256, 16
MB = 2**20


def train(strategy_name: Any, optimizer: str, rows: int) -> dict[str, float]:
    """Train two epochs in this process, which is the chief, and return the seconds and MB of the second."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import keras
    import numpy as np

    import tfdist

    strategy = tfdist.start(strategy_name, workers=1, ps=2)
    before = _memory("VmRSS")
    rng = np.random.default_rng(0)
    x = rng.integers(0, rows, (STEPS * BATCH, WORDS))
    y = rng.random((len(x), 1)).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((WORDS,), dtype="int64"),
                layers.Embedding(rows, WIDTH),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )
        made = tfdist.LazyAdam() if optimizer == "LazyAdam" else getattr(keras.optimizers, optimizer)()
        model.compile(made, "mse")
    model.fit(x, y, batch_size=BATCH, verbose=0)  # which traces the graphs
    begun = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return {"step": (time.perf_counter() - begun) / STEPS, "memory": _memory("VmHWM") - before}


def _memory(name: str) -> float:
    """Return a line of this process's memory, in MB: VmRSS is what it has now, VmHWM what it had at most."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def measured(strategy: str, optimizer: str, rows: int) -> dict[str, float]:
    """Train in a process of its own, and return what it has found."""
    words = [sys.executable, __file__, "--one", strategy, optimizer, str(rows)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{strategy}, {optimizer}: exit status {done.returncode}\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{strategy} {optimizer}: {1000 * found['step']:.0f} ms, {found['memory']:.0f} MB", flush=True)
    return found


def main() -> None:
    """Read the flags, measure, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument(
        "--strategies", nargs="+", default=["parameter_server", "parameter_server_sync"], metavar="STRATEGY"
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    flags: Any = parser.parse_args()
    if flags.one:
        strategy, optimizer, rows = flags.one
        print(json.dumps(train(strategy, optimizer, int(rows))))
        return
    lines = []
    for strategy in flags.strategies:
        rounds = [
            {name: measured(strategy, name, flags.rows) for name in OPTIMIZERS} for _ in range(flags.rounds)
        ]
        for name in OPTIMIZERS:
            ratios = [found[name]["step"] / found["SGD"]["step"] for found in rounds]
            memory = max(found[name]["memory"] for found in rounds)
            step = statistics.median(found[name]["step"] for found in rounds)
            lines.append(
                [f"`{strategy}`", name, f"{1000 * step:.0f}", spread(ratios, ".2f"), f"{memory:.0f}"]
            )
    size = flags.rows * WIDTH * 4 / MB
    head = (
        f"{flags.rows:,} rows of {WIDTH} numbers, {size:.0f} MB; 2 ps tasks and one worker; batches of"
        f" {BATCH} examples of {WORDS} rows; {flags.rounds} rounds, median and range; memory: the most of all"
        f" rounds; {machine()}."
    )
    columns = ("strategy", "optimizer", "ms a step", "step, SGD = 1", "MB of the chief")
    put("large embedding", head, table(columns, lines))


if __name__ == "__main__":
    main()
