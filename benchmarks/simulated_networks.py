"""Simulate the steps that networks.py has measured, with overlap and without, and compare.

    python benchmarks/simulated_networks.py

Everything comes from the tables of networks.py in docs/results.md: the time of one process alone, the type of
the gradients and the speed of the link go into the simulation, and the measured step stands beside the two
that are simulated. Nothing is trained.
"""

import argparse
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from results import RESULTS, put, table

from tfdist.simulation.forecast import forecast
from tfdist.simulation.setup import Compute, Exchange, Network, Setup

Type = Literal["float32", "bfloat16", "int8"]

GRADIENTS = {"mnist_cnn": 13.1e6, "cifar10_cnn": 4.27e6}  # bytes in float32
BITS_PER_SECOND = {"100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10}
TYPES: dict[str, Type] = {
    "tfdist, `implementation: tcp`": "float32",
    "tfdist, tcp, gradients as bfloat16": "bfloat16",
    "tfdist, tcp, gradients as int8": "int8",
}
_BATCH, _WORKERS, _BUCKET_BYTES = 128, 2, 4e6
_MARKED = re.compile(r"<!-- networks (\w+) 2 (\w+) -->\n(.*?)<!-- end of networks", re.DOTALL)


class Measured(NamedTuple):
    """A row of a table: milliseconds of a step alone, and of one on two workers."""

    model: str
    link: str
    dtype: Type
    alone: float
    step: float


def measured(page: str) -> Iterator[Measured]:
    """Find the rows of mirrored workers of tfdist in a page of results."""
    for model, link, text in _MARKED.findall(page):
        cells = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line
        ]
        steps = {row[0]: float(row[2].split()[0]) for row in cells if row[2][:1].isdigit()}
        for way, dtype in TYPES.items():
            if way in steps:
                yield Measured(model, link, dtype, steps["tfdist, one process"], steps[way])


def simulated(row: Measured, *, overlap: bool) -> float:
    """Return the milliseconds of a step."""
    setup = Setup(
        strategy="multi_worker_mirrored",
        compute=Compute(seconds_per_example=row.alone / 1000 / _BATCH, batch_size=_BATCH),
        exchange=Exchange(
            dense_bytes=GRADIENTS[row.model], dtype=row.dtype, overlap=overlap, bucket_bytes=_BUCKET_BYTES
        ),
        network=Network(bytes_per_second=BITS_PER_SECOND[row.link] / 8),
    )
    return 1000 * _WORKERS * _BATCH / forecast(setup, _WORKERS).examples_per_second


def main() -> None:
    """Compare, and put the table into the page."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows = []
    for row in measured(RESULTS.read_text()):
        both = [simulated(row, overlap=overlap) for overlap in (True, False)]
        differences = [f"{value:.0f} ({value / row.step - 1:+.0%})" for value in both]
        rows.append([f"`{row.model}`", row.link, row.dtype, f"{row.step:.0f}", *differences])
    columns = ("model", "link", "gradients as", "measured, ms a step", "simulated", "with `overlap: false`")
    put("simulated networks", table(columns, rows))


if __name__ == "__main__":
    main()
