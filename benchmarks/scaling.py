"""Measure weak scaling: two workers on a core each, against one process on one core.

    python benchmarks/scaling.py [--rounds 5] [--models mnist_cnn cifar10_cnn] [--batch 128]

Each round runs every way of training once, one after the other, with one thread each: so what is compared was
measured within some minutes. Two workers train on twice the batch of one; what two cores can do at all is
what two processes do that train each for itself. A run is measured in windows of ten steps, and the half that
others disturbed least counts; where even there they kept a core busy, the run is done again. What a worker
sends in a step is counted at its socket, and in parentheses divided by the least that an all-reduce can send:
2 (n - 1) / n times the gradients, in as many bits. All have tfdist's local response normalisation, but for
what is said to have TensorFlow's, which computes the same. tf_keras has to be installed; PyTorch and Horovod
get environments of their own, and where that fails, the page says so.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from environments import torch_in
from horovod_peer import Horovod, HorovodError, install
from results import machine, put, spread, table
from rounds import others, told, undisturbed

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.onednn_variables import enable_onednn

PEERS = Path(__file__).parent / "peers"
MOST_OUTSIDE = 0.05  # of a core's time


class Way(NamedTuple):
    """Describe how a model is trained, and by how many workers."""

    title: str
    workers: int
    loop: str
    implementation: str = ""
    steps_per_execution: int = 1
    dtype: str = ""
    is_stock: bool = False  # TensorFlow's own local response normalisation, for models that have one


ONE = Way("tfdist, one process", 1, "tfdist", steps_per_execution=10)
WAYS = (
    ONE,
    Way("two of these, that have nothing to do with each other", 2, "apart", steps_per_execution=10),
    Way("tfdist", 2, "tfdist", "auto", 10),
    Way("tfdist, `implementation: tcp`", 2, "tfdist", "tcp", 10),
    Way("tfdist, tcp, gradients as bfloat16", 2, "tfdist", "tcp", 10, "bfloat16"),
    Way("tfdist, tcp, gradients as int8", 2, "tfdist", "tcp", 10, "int8"),
    Way("tfdist, `implementation: ring` (gRPC)", 2, "tfdist", "ring", 10),
    Way("tf_keras fit, one process", 1, "keras"),
    Way("tf_keras fit, MultiWorkerMirrored", 2, "keras"),
    Way("tf_keras fit, MultiWorkerMirrored, TensorFlow's normalisation", 2, "keras", is_stock=True),
)
# With the normalisation that tfdist has: PyTorch's own is slower.
OF_TORCH = (
    Way("PyTorch, one process", 1, "torch"),
    Way("PyTorch, DistributedDataParallel with gloo", 2, "torch"),
)
OF_HOROVOD = (
    Way("Keras 2.12 with Horovod, one process", 1, "horovod"),
    Way("Keras 2.12 with Horovod and gloo", 2, "horovod"),
)


def run(way: Way, model: str, batch: int, steps: int, torch: str, horovod: Horovod) -> dict[str, float]:
    """Train once; give what was seen."""
    order = {**way._asdict(), "model": model, "batch": batch, "steps": steps}
    is_torch = way.loop == "torch"
    script = PEERS / ("stepping_torch.py" if is_torch else "stepping.py")
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        folder = Path(name)
        python = torch if is_torch else sys.executable
        words = [python, str(script), json.dumps(order), str(folder)]
        if way.loop == "horovod":
            horovod.run([str(PEERS / "stepping_horovod.py"), *words[2:]], way.workers, folder / "said")
        else:
            cluster = ClusterConfig.local(workers=way.workers)
            with (folder / "said").open("w") as said:
                launch(cluster, words, run_dir=folder / "run", threads=1, pin=True, stream=said)
        return told(folder, batch)


def rows_of(ways: Sequence[Way], kept: list[list[dict[str, float]]]) -> list[list[str]]:
    """Make a model's rows."""
    rows = []
    for place, way in enumerate(ways):
        speeds = [each[place]["examples"] for each in kept]
        ratios = [each[place]["examples"] / each[0]["examples"] for each in kept]
        cpu = [1000 * each[place]["cpu"] for each in kept]
        sent, least = (max(each[place].get(name, 0) for each in kept) for name in ("sent", "least"))
        wire = f"{sent / 1e6:.3f} ({sent / least:.4f})" if sent else ""
        if way.implementation == "auto":
            wire = "in memory"
        spreads = spread(speeds, ".0f"), spread(ratios, ".2f"), spread(cpu, ".1f")
        rows.append([way.title, str(way.workers), *spreads, wire])
    return rows


def beside_peers(ways: Sequence[Way], kept: list[list[dict[str, float]]]) -> str:
    """Compare the speed of tfdist's two workers with that of each peer's two workers."""
    ours = next(place for place, way in enumerate(ways) if way.implementation == "auto")
    said = []
    for place, way in enumerate(ways):
        if way.workers > 1 and way.loop in ("keras", "torch", "horovod"):
            ratios = [each[ours]["examples"] / each[place]["examples"] for each in kept]
            said.append(f"{spread(ratios, '.2f')} times {way.title}")
    return f"Two workers of tfdist were as fast as {', '.join(said)}."


def horovod_of(place: Path, batch: int) -> Horovod:
    """Make an environment with Horovod, and take some steps with it: what was built may not run."""
    horovod = install(place)
    if horovod.problem:
        return horovod
    try:
        for way in OF_HOROVOD:
            run(way, "mnist_cnn", batch, 10, "", horovod)  # one window
    except HorovodError as error:
        print(error, flush=True)
        return horovod._replace(problem="installed, but does not run here")
    return horovod


def main() -> None:
    """Read the flags, measure in turns, and put each model's table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=["mnist_cnn", "cifar10_cnn"])
    parser.add_argument("--batch", type=int, default=128, help="of each worker")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--others", type=float, default=MOST_OUTSIDE, help="share of a core's time for others"
    )
    parser.add_argument("--peers", type=Path, help="keep the peers' environments here, for the next time")
    flags: Any = parser.parse_args()
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    with tempfile.TemporaryDirectory(prefix="scaling-peers-") as made:
        place = flags.peers or Path(made)
        torch = torch_in(place / "torch")
        horovod = horovod_of(place / "horovod", flags.batch)
        peers = (*(OF_TORCH if torch.version else ()), *(() if horovod.problem else OF_HOROVOD))
        for model in flags.models:
            ways = [way for way in (*WAYS, *peers) if not way.is_stock or model == "cifar10_cnn"]
            measures = [
                partial(run, way, model, flags.batch, flags.steps, torch.python, horovod) for way in ways
            ]
            kept = undisturbed(model, measures, flags.rounds, flags.others)
            rows = rows_of(ways, kept)
            rows += [[f"Horovod, {horovod.problem}"]] * bool(horovod.problem)
            head = (
                f"Median and range of {flags.rounds} rounds; {flags.batch} examples a step and worker, SGD"
                f" with momentum; a core for each worker; {machine('tf_keras')}, PyTorch"
                f" {torch.version or torch.problem}. {others(kept)}"
            )
            columns = (f"`{model}`", "workers", "examples/s", "of tfdist alone", "CPU ms a step", "MB sent")
            put(f"scaling {model}", head, table(columns, rows), beside_peers(ways, kept))


if __name__ == "__main__":
    main()
