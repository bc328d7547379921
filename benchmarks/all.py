"""Run every benchmark, one after the other; each writes its part of docs/results.md.

    python benchmarks/all.py [--only scaling memory …] [--quick]

It says how long each has taken, and goes on where one fails; the exit status is then 1. `--quick` takes the
fewest rounds that there are, to see that everything runs: its numbers are not for the page, which is left as
it was.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import RESULTS

FOLDER = Path(__file__).parent
QUICK: dict[str, Sequence[str]] = {
    "accuracy": ["--runs", "1", f"{FOLDER.parent}/configs/local.yaml"],
    "bare_step": [],
    "bench_and_run": ["--rounds", "1", "--steps", "50", "--others", "2"],
    "checkpoint_pause": ["--rounds", "1", "--megabytes", "4"],
    "cifar_budget": ["--minutes", "1", "--epochs", "1"],
    "cluster_size": ["--rounds", "1"],
    "first_step": ["--pairs", "1"],
    "fuzz_listeners": ["--sessions", "2000"],
    "growth": ["--rounds", "1", "--largest", "0.1"],
    "keras_tests": ["--strategies", "one_device", "--wanted", "test_fit_flow or test_evaluate_flow"],
    "large_embedding": ["--rounds", "1", "--rows", "100000"],
    "lost_workers": ["--kills", "2"],
    "memory": ["--steps", "200"],
    "networks": [
        *("--rounds", "1", "--steps", "5", "--others", "9", "--models", "mnist_cnn", "--links", "1gbit"),
        *("--ways", "tcp", "keras", "ddp", "horovod", "async"),
    ],
    "random_models": ["--seeds", "0:2"],
    "recovery": ["--pairs", "1"],
    "recovery_parts": ["--runs", "1"],
    "scaling": ["--rounds", "1", "--steps", "20", "--others", "1"],
    "servers": ["--rounds", "1", "--steps", "20", "--others", "1"],
    "simulated_machine": ["--rounds", "1", "--workers", "2"],
    "simulated_networks": [],
    "single": ["--rounds", "1", "--steps", "40", "--others", "1"],
    "soak": ["--seconds", "10"],
    "startup": ["--pairs", "1"],
    "to_accuracy": ["--seeds", "1", "--accuracy", "0.9", "--others", "1"],
}


def scripts() -> list[str]:
    """Name the files that can be run; the others are parts of these."""
    guard = 'if __name__ == "__main__":'
    files = sorted(FOLDER.glob("*.py"))
    return [each.stem for each in files if guard in each.read_text() and each != Path(__file__)]


def main() -> None:
    """Read the flags, and run the scripts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = scripts()
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    flags: Any = parser.parse_args()
    page, failed = RESULTS.read_text(), []
    begun = time.monotonic()
    try:
        for number, name in enumerate(flags.only, 1):
            words = [sys.executable, str(FOLDER / f"{name}.py"), *(QUICK[name] if flags.quick else ())]
            print(f"[{number} of {len(flags.only)}] {' '.join(words[1:])}", flush=True)
            started = time.monotonic()
            status = subprocess.run(words).returncode
            failed += [name] * bool(status)
            told = f"failed with {status} " if status else ""
            print(f"{name}: {told}after {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
    finally:
        if flags.quick:
            RESULTS.write_text(page)
    print(f"all: {(time.monotonic() - begun) / 60:.1f} minutes")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
