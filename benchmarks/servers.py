"""Measure training on parameter servers: one ps and two workers on two cores, against a process on one core.

    python benchmarks/servers.py [--rounds 5] [--models mnist_cnn cifar10_cnn] [--batch 128]

Each round runs every way of training once, one after the other, with one thread each: so what is compared
was measured within some minutes. What two cores can do at all is what two processes do that train each for
itself. The ps and the chief have no core of their own. What is measured while others keep a core busy is
measured again. CPU time is that of all tasks, for a batch of one worker; so are the bytes that the sockets of
ps and workers have sent, and in parentheses divided by the least there is to send: the variables down and the
gradients up, in as many bits. All have tfdist's local response normalisation, but for what is said to have
TensorFlow's, which computes the same. tf_keras has to be installed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from results import machine, put, spread, table
from rounds import others, told, undisturbed

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.onednn_variables import enable_onednn

PEERS = Path(__file__).parent / "peers"
MOST_OUTSIDE = 0.05  # of a core's time
WORKERS = 2
BYTES = {"bfloat16": 2, "int8": 1}
PARAMETERS = {"mnist_cnn": 3_274_634, "cifar10_cnn": 1_068_298}


class Way(NamedTuple):
    """Describe how a model is trained."""

    title: str
    loop: str
    strategy: str = ""
    implementation: str = ""
    dtype: str = ""
    steps_per_execution: int = 10
    is_stock: bool = False  # TensorFlow's own local response normalisation, for models that have one

    @property
    def batches(self) -> int:
        """Return how many workers' batches a step is."""
        return WORKERS if self.strategy == "parameter_server_sync" else 1


ONE = Way("tfdist, one process", "tfdist")
WAYS = (
    ONE,
    Way("two of these, that have nothing to do with each other", "apart"),
    Way("tfdist, asynchronous", "tfdist", "parameter_server", "auto"),
    Way("tfdist, asynchronous, tcp", "tfdist", "parameter_server", "tcp"),
    Way("tfdist, asynchronous, tcp, bfloat16", "tfdist", "parameter_server", "tcp", "bfloat16"),
    Way("tfdist, asynchronous, tcp, int8", "tfdist", "parameter_server", "tcp", "int8"),
    Way("tfdist, asynchronous, gRPC", "tfdist", "parameter_server", "grpc"),
    Way("tfdist, synchronous", "tfdist", "parameter_server_sync", "auto"),
    Way("tfdist, synchronous, tcp", "tfdist", "parameter_server_sync", "tcp"),
    Way("tfdist, synchronous, gRPC", "tfdist", "parameter_server_sync", "grpc"),
    Way("tf_keras fit, one process", "keras"),
    Way("tf_keras fit, ParameterServerStrategy", "keras", "parameter_server"),
    Way(
        "tf_keras fit, ParameterServerStrategy, TensorFlow's normalisation",
        "keras",
        "parameter_server",
        is_stock=True,
    ),
)


def run(way: Way, model: str, batch: int, steps: int) -> dict[str, float]:
    """Train once; give what the chief has seen."""
    is_apart = way.loop == "apart"
    workers = WORKERS if way.strategy or is_apart else 1
    script = PEERS / ("stepping.py" if is_apart else "stepping_servers.py")
    order = {**way._asdict(), "model": model, "batch": batch, "steps": steps}
    with tempfile.TemporaryDirectory(prefix="servers-") as name:
        folder = Path(name)
        words = [sys.executable, str(script), json.dumps(order), str(folder)]
        with (folder / "said").open("w") as said:
            launch(
                ClusterConfig.local(workers=workers, ps=1 if way.strategy else 0),
                words,
                run_dir=folder / "run",
                threads=1,
                pin=True,
                stream=said,
            )
        found = told(folder, way.batches * batch)
    if is_apart:
        return found
    whole = {name: found[name] for name in ("outside", "examples")}
    return {**{name: value / way.batches for name, value in found.items()}, **whole}


def rows_of(model: str, ways: Sequence[Way], kept: list[list[dict[str, float]]]) -> list[list[str]]:
    """Make a model's rows."""

    def middle(place: int, name: str) -> float:
        found = [sum(value for key, value in each[place].items() if key.startswith(name)) for each in kept]
        return 1000 * statistics.median(found)

    rows = []
    peer = next((place for place, way in enumerate(ways) if way.loop == "keras" and way.strategy), None)
    for place, way in enumerate(ways):
        of_one = [each[place]["examples"] / each[0]["examples"] for each in kept]
        of_peer = [each[place]["examples"] / each[peer]["examples"] for each in kept] if peer else []
        cpu = " + ".join(f"{middle(place, name):.1f}" for name in ("chief", "ps", "worker"))
        sent = max(each[place]["sent"] for each in kept)
        least = 2 * BYTES.get(way.dtype, 4) * PARAMETERS.get(model, 0)
        wire = f"{sent / 1e6:.3f} ({sent / max(least, 1):.4f})"
        cells = [
            way.title,
            spread([each[place]["examples"] for each in kept], ".0f"),
            spread(of_one, ".2f"),
            spread(of_peer, ".2f") if of_peer else "",
            cpu if way.strategy else f"{middle(place, 'cpu'):.1f}",
            "in memory" if way.implementation == "auto" else wire if sent and least else "",
        ]
        rows.append(cells)
    return rows


def main() -> None:
    """Read the flags, measure in turns, and put each model's table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=["mnist_cnn", "cifar10_cnn"])
    parser.add_argument("--batch", type=int, default=128, help="of each worker")
    parser.add_argument("--steps", type=int, default=200, help="of an epoch; the second is measured")
    parser.add_argument("--ways", nargs="*", type=int, default=range(len(WAYS)), help="the rows to measure")
    parser.add_argument(
        "--others", type=float, default=MOST_OUTSIDE, help="share of a core's time for others"
    )
    flags: Any = parser.parse_args()
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    for model in flags.models:
        ways = [WAYS[each] for each in flags.ways if not WAYS[each].is_stock or model == "cifar10_cnn"]
        measures = [partial(run, way, model, flags.batch, flags.steps) for way in ways]
        kept = undisturbed(model, measures, flags.rounds, flags.others)
        head = (
            f"Median and range of {flags.rounds} rounds; {flags.batch} examples a batch, SGD with momentum,"
            f" 10 steps in a graph call; {machine('tf_keras')}. CPU time is of chief + ps + workers."
            f" {others(kept)}"
        )
        columns = (
            f"`{model}`",
            "examples/s",
            "of tfdist alone",
            "of tf_keras's servers",
            "CPU ms a batch",
            "MB sent",
        )
        put(f"servers {model}", head, table(columns, rows_of(model, ways, kept)))


if __name__ == "__main__":
    main()
