"""Send mutated sessions to each listener of tfdist's own, and count what comes of it.

    python benchmarks/fuzz_listeners.py [--sessions 100000] [--seed 0]

A recorded handshake, with the messages after it, is cut off, repeated, reordered, altered, made too long, or
left open. Meanwhile genuine tasks use the listener. No stranger may be let in; no error, memory, descriptor
or thread may stay; and the genuine tasks must find what they look for.
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "transport"))

from fuzzing import ATTACKS
from results import machine, put, table

_COLUMNS = (
    "listener",
    "mutated sessions",
    "let in",
    "errors",
    "descriptors and threads that stay",
    "growth of the process",
    "genuine uses meanwhile",
    "sessions a second",
)


def main() -> None:
    """Read the flags, attack each listener, and put what came of it into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=100_000, help="of all listeners together")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    rows, broken = [], []
    for name, attack in ATTACKS.items():
        began = time.monotonic()
        found = attack(flags.sessions // len(ATTACKS), random.Random(flags.seed))
        speed = found.sessions / (time.monotonic() - began)
        counts = (found.sessions, found.let_in, len(found.errors), found.left)
        megabytes = f"{found.kilobytes / 1024:.1f} MB"
        rows.append(
            [name, *(f"{each:,}" for each in counts), megabytes, f"{found.genuine:,}", f"{speed:,.0f}"]
        )
        if found.let_in or found.errors or found.left or not found.genuine:
            broken.append(f"{name}: {found}"[:2000])
    put("fuzzed listeners", f"Seed {flags.seed}; {machine()}.", table(_COLUMNS, rows))
    if broken:
        sys.exit(
            "benchmarks/fuzz_listeners.py: expected that nothing comes of it; received\n" + "\n".join(broken)
        )


if __name__ == "__main__":
    main()
