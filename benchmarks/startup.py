"""Measure what answering without TensorFlow saves: `tfdist plan` against importing TensorFlow, in pairs.

python benchmarks/startup.py [--pairs 5]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import machine, spread


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
        plan = [sys.executable, "-m", "tfdist", "plan", "--config", str(config)]
        bare = [sys.executable, "-c", "import tensorflow"]
        seconds(plan), seconds(bare)  # files into the page cache
        measured = [(seconds(plan), seconds(bare)) for _ in range(pairs)]
    print(f"Median and range of {pairs} pairs, in turns; {machine()}.")
    print(f"tfdist plan        {spread([plan for plan, _ in measured], '.2f', ' s')}")
    print(f"import tensorflow  {spread([bare for _, bare in measured], '.2f', ' s')}")
    print(f"ratio              {spread([bare / plan for plan, bare in measured], '.1f')}")


if __name__ == "__main__":
    main()
