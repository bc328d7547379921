"""Train the shipped configs on real data and write what they reach into docs/results.md.

    TFDS_DATA_DIR=... python benchmarks/accuracy.py [--runs 3] [--epochs 3] [configs/ps2w.yaml ...]

Each run has a seed of its own. Accuracy is that of all test examples; the wall time is the run's own, from
the start of the chief to the checked export.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results.md"


def reached(config: Path, epochs: int, seed: int) -> dict:
    """Run a config once and give its report."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", str(config), "--run_dir", folder, f"--set=train.epochs={epochs}"]
        words += [f"--set=train.seed={seed}", "--set=data.if_unavailable=fail"]
        subprocess.run([sys.executable, "-m", "tfdist.train", *words], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(folder, "report.json").read_text())


def row(config: Path, epochs: int, runs: int) -> tuple[str, dict]:
    """Run a config some times and make a table's row of it."""
    reports = [reached(config, epochs, seed) for seed in range(runs)]
    accuracies = sorted(100 * report["test_accuracy"] for report in reports)
    seconds = sorted(report["seconds"] for report in reports)
    cells = [
        f"`configs/{config.name}`",
        reports[0]["data"],
        str(epochs),
        f"{statistics.median(accuracies):.2f} % ({accuracies[0]:.2f} to {accuracies[-1]:.2f})",
        f"{statistics.median(seconds):.0f} s ({seconds[0]:.0f} to {seconds[-1]:.0f})",
    ]
    return f"| {' | '.join(cells)} |", reports[0]["versions"]


def main() -> None:
    """Read the flags, run, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "configs", type=Path, nargs="*", default=[ROOT / "configs/ps2w.yaml", ROOT / "configs/mwms2w.yaml"]
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    flags = parser.parse_args()
    rows, versions = zip(*(row(each, flags.epochs, flags.runs) for each in flags.configs), strict=True)
    text = "\n".join(
        [
            f"Median and range of {flags.runs} runs with seeds of their own; {os.cpu_count()} cores,"
            f" Python {platform.python_version()}, TensorFlow {versions[0]['tensorflow']}.",
            "",
            "| config | data | epochs | test accuracy | wall time |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )
    print(text)
    put("accuracy", text)


def put(name: str, text: str) -> None:
    """Put a text into the page, between the marks that bear its name."""
    page = RESULTS.read_text()
    marks = (f"<!-- {name} -->\n", f"<!-- end of {name} -->\n")
    pattern = re.escape(marks[0]) + ".*?" + re.escape(marks[1])
    page, found = re.subn(pattern, lambda _: f"{marks[0]}{text}\n{marks[1]}", page, flags=re.DOTALL)
    if not found:
        sys.exit(f"{RESULTS}: expected the marks {marks}, received none")
    RESULTS.write_text(page)


if __name__ == "__main__":
    main()
