"""Train CIFAR-10's CNN of 2016 in one process on one core, and on 1 ps and 2 workers of one core each.

    python examples/cifar10_cluster.py --steps 1000

Prints the table of each: the loss, weight decay included, and examples per second; and the ratio. A step is
128 examples; the workers update the variables on the ps each at its own pace. The ps and the chief share the
cores of the workers where there are no others.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

CONFIG = Path(__file__).parents[1] / "configs" / "cifar10-ps2w.yaml"
# The tutorial's optimizer, and one thread for each task.
CHANGES = [
    "train.optimizer=sgd",
    "train.learning_rate=0.1",
    "train.schedule=constant",
    "evaluation.batches=4",
]
RUNS = {
    "one process on one core": ["cluster={}", "strategy.name=one_device"],
    "1 ps and 2 workers, one core each": ["launch.threads=1", "launch.pin=true"],
}
Rows = list[tuple[int, float, float]]


def trained(changes: list[str], steps: int, every: int) -> Rows:
    """Train in a process of its own; give step, loss and examples per second of each point of the curves."""
    changes = [*CHANGES, *changes, f"train.steps={steps}", f"summaries.every={every}"]
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    is_alone = "cluster={}" in changes
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tfdist.train", "--config", str(CONFIG), "--run_dir", folder]
        process = subprocess.Popen(
            [*command, *(f"--set={change}" for change in changes)],
            env={**os.environ, **(threads if is_alone else {})},
            stdout=subprocess.DEVNULL,
        )
        if is_alone and hasattr(os, "sched_setaffinity"):  # Linux; elsewhere one thread has to do
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        if process.wait():
            sys.exit(process.returncode)
        return _points(Path(folder, "summaries", "train"))


def _points(folder: Path) -> Rows:
    curves: dict[str, dict[int, float]] = {"loss": {}, "examples per second": {}}
    for file in sorted(folder.glob("events.*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag in curves:
                    curves[value.tag][event.step] = float(tf.make_ndarray(value.tensor))
    return [
        (step, loss, curves["examples per second"][step]) for step, loss in sorted(curves["loss"].items())
    ]


def main() -> None:
    """Read the flags, train both ways, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps from one row to the next")
    flags = parser.parse_args()
    speeds = []
    for name, changes in RUNS.items():
        rows = trained(changes, flags.steps, flags.every)
        print(f"{name}\n\n| step | loss | examples/s |\n|---|---|---|")
        for step, loss, speed in rows:
            print(f"| {step} | {loss:.2f} | {speed:.0f} |")
        # The first row's time is that of tracing, too.
        speeds.append(statistics.median(speed for _, _, speed in rows[1:] or rows))
        print()
    print(f"ratio {speeds[1] / speeds[0]:.2f} ({speeds[0]:.0f} and {speeds[1]:.0f} examples/s, medians)")


if __name__ == "__main__":
    main()
