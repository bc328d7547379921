"""Train the shipped configs on real data and write what they reach into docs/results.md.

    TFDS_DATA_DIR=... python benchmarks/accuracy.py [--runs 3] [configs/ps2w.yaml[:EPOCHS] ...]
    TFDS_DATA_DIR=... python benchmarks/accuracy.py --types [--runs 5]

Without configs: each of MNIST's for the epochs that it says, and two of them for three epochs. Each run has a
seed of its own. Accuracy is that of all test examples; the wall time is that of the whole command, from start
to end. With --types: two mirrored workers, 600 steps, with gradients sent in each type.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import machine, put, spread, table

ROOT = Path(__file__).parents[1]
DEFAULT = [
    "local.yaml",
    "mirrored.yaml",
    "mwms2w.yaml",
    "ps2w.yaml",
    "ps2w-sync.yaml",
    "mwms2w.yaml:3",
    "ps2w.yaml:3",
]
TYPES = ("float32", "bfloat16", "float16", "int8")
STEPS = 600


def reached(config: Path, settings: Sequence[str], seed: int) -> dict[str, Any]:
    """Run a config once; return its report, with the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", str(config), "--run_dir", folder, f"--set=train.seed={seed}"]
        words += [f"--set={each}" for each in ("data.if_unavailable=fail", *settings)]
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "tfdist.train", *words], check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(Path(folder, "report.json").read_text())
        return report | {"seconds": time.monotonic() - begun}


def row(wanted: str, runs: int) -> list[str]:
    """Run a config some times and make a table's row of it."""
    name, _, epochs = wanted.partition(":")
    config, settings = Path(name), [f"train.epochs={epochs}"] if epochs else []
    reports = [reached(config, settings, seed) for seed in range(runs)]
    return [
        f"`configs/{config.name}`",
        reports[0]["data"],
        str(reports[0]["config"]["train"]["epochs"]),
        spread([100 * report["test_accuracy"] for report in reports], ".2f", " %"),
        spread([report["seconds"] for report in reports], ".0f", " s"),
    ]


def of_types(runs: int) -> list[list[str]]:
    """Train with gradients sent in each type, in turns; return a table's row for each."""
    config = ROOT / "configs" / "mwms2w.yaml"
    found: dict[str, list[float]] = {name: [] for name in TYPES}
    for seed in range(runs):
        for name in TYPES:
            settings = [
                "communication.implementation=tcp",
                f"communication.dtype={name}",
                f"train.steps={STEPS}",
            ]
            found[name].append(100 * reached(config, settings, seed)["test_accuracy"])
            print(f"seed {seed}, {name}: {found[name][-1]:.2f} %", flush=True)
    pairs = {
        name: [mine - whole for mine, whole in zip(found[name], found["float32"], strict=True)]
        for name in TYPES
    }
    return [[f"`{name}`", spread(found[name], ".2f", " %"), spread(pairs[name], "+.2f")] for name in TYPES]


def main() -> None:
    """Read the flags, run, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="*", default=[f"{ROOT}/configs/{each}" for each in DEFAULT])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--types", action="store_true", help="compare the types in which gradients are sent")
    flags = parser.parse_args()
    if flags.types:
        head = (
            f"Two mirrored workers, `mnist_cnn`, {STEPS} steps of 128 examples; median and range of"
            f" {flags.runs} seeds; {machine()}."
        )
        columns = ("gradients as", "test accuracy", "less that of float32, percentage points")
        put("accuracy of types", head, table(columns, of_types(flags.runs)), before="simulated networks")
        return
    rows = [row(each, flags.runs) for each in flags.configs]
    head = f"Median and range of {flags.runs} runs with seeds of their own; {machine()}."
    put("accuracy", head, table(("config", "data", "epochs", "test accuracy", "wall time"), rows))


if __name__ == "__main__":
    main()
