"""Train one model with gradients that travel in 32, 16 and 8 bits; compare the bytes, and what was learned.

    python examples/exchange_dtypes.py --steps 600

Starts a cluster on this machine for each. The bytes of a step are those that the kernel has counted at the
sockets: of the chief, as one of the mirrored workers, or with ps tasks, of each kind together.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIGS = {
    "multi_worker_mirrored": "mwms2w.yaml",
    "parameter_server": "ps2w.yaml",
    "parameter_server_sync": "ps2w-sync.yaml",
}
DTYPES = ("float32", "bfloat16", "float16", "int8")


def report_of(strategy: str, dtype: str, changes: list[str]) -> dict[str, Any]:
    """Train as the strategy's config says, but for some changes; give the report."""
    config = Path(__file__).parents[1] / "configs" / CONFIGS[strategy]
    changes = [f"communication={{implementation: tcp, dtype: {dtype}}}", *changes]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tfdist.train", "--config", str(config), "--run_dir", folder]
        subprocess.run(
            [*command, *(f"--set={each}" for each in changes)], check=True, stdout=subprocess.DEVNULL
        )
        report: dict[str, Any] = json.loads(Path(folder, "report.json").read_text())
        return report


def sent_by(report: dict[str, Any]) -> dict[str, int]:
    """Add up the bytes that the tasks of each kind have sent in a step."""
    kinds: dict[str, int] = {}
    for task, sent in report["bytes_sent_per_step"].items():
        kind = task.partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + sent
    return kinds


def main() -> None:
    """Read the flags, train with each dtype, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", choices=CONFIGS, default="multi_worker_mirrored")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument(
        "--set", action="append", default=[], help="a value of the config, as for tfdist.train"
    )
    flags = parser.parse_args()
    print("| dtype | bytes a step | of the first's | test accuracy |\n|---|---|---|---|", flush=True)
    whole = 0
    for dtype in flags.dtypes:
        report = report_of(flags.strategy, dtype, [f"train.steps={flags.steps}", *flags.set])
        kinds = sent_by(report)
        sent = sum(kinds.values())
        whole = whole or sent
        by = ", ".join(f"{count} by {kind}" for kind, count in kinds.items())
        print(f"| {dtype} | {by} | {sent / whole:.1%} | {report['test_accuracy']:.4f} |", flush=True)


if __name__ == "__main__":
    main()
