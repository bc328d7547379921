"""See how the cost of a step grows with workers, parameter servers, bytes of variables, and embedding rows.

    python benchmarks/growth.py [--rounds 3] [--largest 1.0] [SERIES ...]

Of each size a cluster on this machine trains a model that computes next to nothing, and the CPU time of all
its processes is counted for a step: what is left when there is no computing is what distributing costs. So
it does not matter that eight workers have two cores. A power of the size is fitted to the larger sizes of a
series, where the cost of what is there at any size no longer hides it. An exponent above {allowed} ends the
script with 1. `--largest 0.1` leaves out the sizes above a tenth of the largest, but for the first {of_fit}.
With matplotlib there is a plot, docs/growth.png.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import new_mark
from results import RESULTS, machine, put, spread, table

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch

PEER = Path(__file__).parent / "peers" / "growing.py"
PLOT = RESULTS.with_name("growth.png")
ALLOWED = 1.1  # what is linear, and the noise of the measurement
OF_FIT = 3  # how many of the largest sizes


class Series(NamedTuple):
    """Describe what grows, under which strategy, and what is trained meanwhile."""

    what: str
    strategy: str
    sizes: Sequence[int]
    cluster: Callable[[int], Mapping[str, Any]]
    model: str
    weight: Callable[[int], int]  # MB of variables, or rows
    is_per_worker: bool = False


def _two_workers(size: int) -> Mapping[str, int]:
    return {"workers": 2}


def _beside_a_ps(size: int) -> Mapping[str, int]:
    return {"workers": 2, "ps": 1}


_MEGABYTES, _ROWS = (1, 4, 16, 64, 200, 400), (10**3, 10**4, 10**5, 10**6, 10**7)
_WORKERS, _SERVERS = (1, 2, 4, 6, 8), (1, 2, 3, 4)
MIRRORED, APART, TOGETHER = "multi_worker_mirrored", "parameter_server", "parameter_server_sync"


def _same(size: int) -> int:
    return size


def _bytes(strategy: str, cluster: Callable[[int], Mapping[str, Any]]) -> Series:
    return Series("MB of variables", strategy, _MEGABYTES, cluster, "dense", _same)


def _rows(strategy: str, cluster: Callable[[int], Mapping[str, Any]]) -> Series:
    return Series("embedding rows", strategy, _ROWS, cluster, "embedding", _same)


def _workers(what: str, strategy: str, ps: int) -> Series:
    # In a ring each worker has messages of its own for every other one; the tasks' costs are looked at each.
    return Series(what, strategy, _WORKERS, lambda n: {"workers": n, "ps": ps}, "dense", lambda n: 1, not ps)


SERIES = {
    "workers": _workers("workers", MIRRORED, 0),
    "workers-ps": _workers("workers beside a ps", APART, 1),
    "ps": Series(
        "ps, 4 MB for each", TOGETHER, _SERVERS, lambda n: {"workers": 2, "ps": n}, "dense", lambda n: 4 * n
    ),
    "bytes": _bytes(MIRRORED, _two_workers),
    "bytes-ps": _bytes(APART, _beside_a_ps),
    "rows": _rows(MIRRORED, _two_workers),
    "rows-ps": _rows(APART, _beside_a_ps),
}


def cost(series: Series, size: int) -> float:
    """Train once; give the CPU milliseconds of a step, of all processes or for each worker."""
    weight = series.weight(size)
    # As many steps as take about as long: the system counts CPU time in hundredths of a second.
    steps = 200 if series.model == "embedding" else max(20, 400 // (weight + 1) // 10 * 10)
    order = {
        "strategy": series.strategy,
        "model": series.model,
        "size": weight,
        "batch": 4,
        "steps": steps,
        "steps_per_execution": 10,
    }
    cluster = ClusterConfig.local(**series.cluster(size))
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        folder = Path(name)
        words = [sys.executable, str(PEER), json.dumps(order), str(folder / "found.json")]
        with (folder / "said").open("w") as said:
            launch(cluster, words, run_dir=folder / "run", threads=1, env=new_mark(), stream=said)
        cpu = float(json.loads((folder / "found.json").read_text())["cpu"])
    return 1000 * cpu / (len(cluster.worker) if series.is_per_worker else 1)


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Fit a power of the size to the costs of the largest."""
    return float(np.polyfit(np.log(sizes[-OF_FIT:]), np.log(costs[-OF_FIT:]), 1)[0])


def plot(found: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> None:
    """Draw each series on logarithmic axes, beside what grows linearly."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    columns = 4
    figure, axes = pyplot.subplots(
        -(-len(found) // columns), columns, figsize=(12, 5.5), layout="constrained"
    )
    for axis in axes.flat[len(found) :]:
        axis.remove()
    for axis, (name, (sizes, costs)) in zip(axes.flat, found.items(), strict=False):
        series = SERIES[name]
        axis.loglog(sizes, costs, "o-")
        axis.loglog(sizes, [costs[-1] * each / sizes[-1] for each in sizes], ":", color="grey")
        axis.set(xlabel=series.what, ylabel="CPU ms a step", title=series.strategy)
        if sizes[-1] < 10:  # too few for powers of ten
            axis.set_xticks(sizes, [str(each) for each in sizes])
            axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.set_ylim(min(costs) / 3, 2 * max(costs))
        if max(costs) < 30 * min(costs):
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
    figure.savefig(PLOT, dpi=80, metadata={"Software": ""})


def main() -> None:
    """Read the flags, measure, and put table and plot into the page."""
    text = (__doc__ or "").format(allowed=ALLOWED, of_fit=OF_FIT)
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="*", default=list(SERIES), metavar="SERIES", help=", ".join(SERIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest", type=float, default=1.0)
    flags: Any = parser.parse_args()
    rows, too_fast = [], []
    found: dict[str, tuple[Sequence[int], Sequence[float]]] = {}
    for name in flags.series:
        series = SERIES[name]
        within = sum(each <= flags.largest * series.sizes[-1] for each in series.sizes)
        sizes = series.sizes[: max(OF_FIT, within)]
        rounds = []
        for _ in range(flags.rounds):
            rounds.append([cost(series, size) for size in sizes])
            print(name, " ".join(f"{each:.1f}" for each in rounds[-1]), flush=True)
        costs = [statistics.median(each) for each in zip(*rounds, strict=True)]
        exponents = [exponent(sizes, each) for each in rounds]
        found[name] = (sizes, costs)
        too_fast += [name] * (statistics.median(exponents) > ALLOWED)
        points = "; ".join(f"{size:,}: {each:.1f}" for size, each in zip(sizes, costs, strict=True))
        whose = "a worker's" if series.is_per_worker else "all"
        rows.append([series.what, f"`{series.strategy}`", points, whose, spread(exponents, ".2f")])
    head = (
        f"{flags.rounds} round{'s' * (flags.rounds > 1)}, median; exponents of the {OF_FIT} largest sizes,"
        f" median and range; {machine()}."
    )
    columns = ("size", "strategy", "CPU ms of a step", "of tasks", "exponent")
    parts = [head, table(columns, rows)]
    if util.find_spec("matplotlib"):
        plot(found)
        parts += [f"![CPU time of a step over size; dotted: linear]({PLOT.name})"]
    put("growth", *parts)
    if too_fast:
        sys.exit(f"grows faster than linearly: {', '.join(too_fast)}")


if __name__ == "__main__":
    main()
