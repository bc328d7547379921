"""Measure what answering without TensorFlow saves: `tfdist plan` against importing TensorFlow, in pairs.

python benchmarks/startup.py [--pairs 5]
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "cluster.yaml")
        config.write_text("cluster: {worker: 2, ps: 1}\n")
        plan = [sys.executable, "-m", "tfdist.plan", "--config", str(config)]
        bare = [sys.executable, "-c", "import tensorflow"]
        seconds(plan), seconds(bare)  # files into the page cache
        measured = [(seconds(plan), seconds(bare)) for _ in range(pairs)]
    version = subprocess.run(
        [sys.executable, "-c", "import tensorflow as tf; print(tf.__version__)"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    ratios = sorted(bare / plan for plan, bare in measured)
    print(f"Python {platform.python_version()}, TensorFlow {version}, {os.cpu_count()} cores, n = {pairs}")
    print(f"tfdist plan        median {statistics.median(plan for plan, _ in measured):.2f} s")
    print(f"import tensorflow  median {statistics.median(bare for _, bare in measured):.2f} s")
    print(f"ratio              median {statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})")


if __name__ == "__main__":
    main()
