"""Train the shipped configs on real data and write what they reach into docs/results.md.

    TFDS_DATA_DIR=... python benchmarks/accuracy.py [--runs 3] [configs/ps2w.yaml[:EPOCHS] ...]

Without configs: each of MNIST's for the epochs that it says, and two of them for three epochs. Each run has a
seed of its own. Accuracy is that of all test examples; the wall time is that of the whole command, from start
to end.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
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


def reached(config: Path, epochs: str, seed: int) -> dict[str, Any]:
    """Run a config once; give its report, with the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", str(config), "--run_dir", folder, f"--set=train.seed={seed}"]
        words += ["--set=data.if_unavailable=fail"] + [f"--set=train.epochs={epochs}"] * bool(epochs)
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "tfdist.train", *words], check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(Path(folder, "report.json").read_text())
        return report | {"seconds": time.monotonic() - begun}


def row(wanted: str, runs: int) -> list[str]:
    """Run a config some times and make a table's row of it."""
    name, _, epochs = wanted.partition(":")
    config = Path(name)
    reports = [reached(config, epochs, seed) for seed in range(runs)]
    return [
        f"`configs/{config.name}`",
        reports[0]["data"],
        str(reports[0]["config"]["train"]["epochs"]),
        spread([100 * report["test_accuracy"] for report in reports], ".2f", " %"),
        spread([report["seconds"] for report in reports], ".0f", " s"),
    ]


def main() -> None:
    """Read the flags, run, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="*", default=[f"{ROOT}/configs/{each}" for each in DEFAULT])
    parser.add_argument("--runs", type=int, default=3)
    flags = parser.parse_args()
    rows = [row(each, flags.runs) for each in flags.configs]
    head = f"Median and range of {flags.runs} runs with seeds of their own; {machine()}."
    put("accuracy", head, table(("config", "data", "epochs", "test accuracy", "wall time"), rows))


if __name__ == "__main__":
    main()
