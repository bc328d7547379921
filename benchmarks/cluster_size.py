"""Measure how the work on a cluster's configuration grows with its tasks: 10, 100 and 1,000 of them.

python benchmarks/cluster_size.py [--rounds 5]

A tenth of the tasks are parameter servers. The exponent is that between 100 and 1,000 tasks: 1 is linear. The
TF_CONFIG of a task names all tasks, so the text of all TF_CONFIGs is quadratic whatever writes it.
"""

import argparse
import io
import math
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from results import machine, spread

from tfdist.cli.plan import main as plan
from tfdist.cli.render import main as render
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.calls_out_of_step import CallState, are_out_of_step, first_waiting, have_parted
from tfdist.coordination.heartbeat_watch import Watcher
from tfdist.coordination.rendezvous import marks_of
from tfdist.coordination.rendezvous.call_members import Lead
from tfdist.coordination.wait_for_tasks import Awaiting

SIZES = (10, 100, 1000)


def addresses(tasks: int) -> dict[str, list[str]]:
    """Return the addresses of a cluster of so many workers and parameter servers, and a chief."""
    hosts = [f"10.0.{index // 250}.{index % 250 + 1}:2222" for index in range(tasks + 1)]
    servers = tasks // 10
    return {"chief": hosts[:1], "ps": hosts[1 : servers + 1], "worker": hosts[servers + 1 :]}


def built(tasks: int) -> ClusterConfig:
    return ClusterConfig(**addresses(tasks), task=("chief", 0))  # type: ignore[arg-type]


def operations(tasks: int, folder: Path) -> dict[str, Callable[[], object]]:
    """Return what is measured of a cluster, by name."""
    cluster, config = built(tasks), folder / f"{tasks}.yaml"
    roles = (f"  {role}: [{', '.join(known)}]" for role, known in addresses(tasks).items())
    config.write_text("\n".join(["cluster:", *roles]))

    def planned() -> None:
        with redirect_stdout(io.StringIO()):
            plan(str(config))

    def rendered(engine: str) -> None:
        with redirect_stdout(io.StringIO()):
            render([engine, "true"], workers=tasks - tasks // 10, ps=tasks // 10)

    def met() -> None:
        Lead(cluster, marks_of(cluster, {}), Awaiting("make_strategy", cluster, 1.0), None, 0.0)

    # Each has made another number of variables: a cluster that has just begun to build its model.
    calls = [CallState(1, "fit", 1, "fit", made=index, making="kernel") for index in range(tasks)]

    def compared() -> None:
        are_out_of_step(calls)
        have_parted(calls)
        first_waiting(calls[::-1])

    return {
        "build and check": lambda: built(tasks),
        "address of each task": lambda: [cluster.address(task) for task in cluster.tasks()],
        "with_task of each task": lambda: [cluster.with_task(*task) for task in cluster.tasks()],
        "TF_CONFIG of each task": lambda: [cluster.tf_config_json(*task) for task in cluster.tasks()],
        "tfdist plan": planned,
        "tfdist render compose": lambda: rendered("compose"),
        "tfdist render slurm": lambda: rendered("slurm"),
        "set up the heartbeat": lambda: Watcher(cluster, heartbeat_timeout=60.0),
        "set up the rendezvous": met,
        "compare the calls of all tasks": compared,
    }


def milliseconds(operation: Callable[[], object]) -> float:
    start = time.perf_counter()
    operation()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with TemporaryDirectory() as folder:
        found = {size: operations(size, Path(folder)) for size in SIZES}
        measured: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for size, known in found.items():
                for name, operation in known.items():
                    measured.setdefault((name, size), []).append(milliseconds(operation))
    print(f"Median and range of {rounds} rounds, in milliseconds; {machine()}.\n")
    print(f"| tasks | {' | '.join(f'{size:,}' for size in SIZES)} | exponent |")
    print("|---|---|---|---|---|")
    for name in found[SIZES[0]]:
        cells = [spread(measured[name, size], ".2f") for size in SIZES]
        least, most = (min(measured[name, size]) for size in SIZES[1:])
        print(f"| {name} | {' | '.join(cells)} | {math.log10(most / least):.2f} |")


if __name__ == "__main__":
    main()
