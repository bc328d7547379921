"""Measure training over networks of known speed, beside TensorFlow's own exchange, PyTorch and Horovod.

    python benchmarks/networks.py [--workers 2] [--models mnist_cnn …] [--links 1gbit …] [--ways tcp ddp …]

Each task runs in a network namespace of its own, on a bridge, as on a machine of its own: no memory is
shared, and both ends of its link are limited. A worker has one core and one thread. Each round runs every way
of training once, one after the other. It needs root, for `ip netns`. tf_keras has to be installed; PyTorch
gets an environment of its own in the user's cache, and where that fails, the page says so.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from environments import torch_in
from network_tasks import LINKS, Network, network, why_no_network
from results import machine, put, spread, table
from rounds import others, undisturbed

from tfdist.launcher import onednn

PEERS = Path(__file__).parent / "peers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tfdist" / "benchmarks"
MODELS = ("mnist_cnn", "cifar10_cnn", "transformer", "two_tower")
BATCH = 128  # of each worker
WARM_UP, WINDOW = 5, 5  # steps


class Way(NamedTuple):
    """Describe how a model is trained."""

    title: str
    loop: str
    is_alone: bool = False
    implementation: str = ""
    dtype: str = ""


WAYS = {
    "one": Way("tfdist, one process", "tfdist", is_alone=True),
    "one_keras": Way("tf_keras fit, one process", "keras", is_alone=True),
    "one_torch": Way("PyTorch, one process", "torch", is_alone=True),
    "tcp": Way("tfdist, `implementation: tcp`", "tfdist", implementation="tcp"),
    "bfloat16": Way("tfdist, tcp, gradients as bfloat16", "tfdist", implementation="tcp", dtype="bfloat16"),
    "int8": Way("tfdist, tcp, gradients as int8", "tfdist", implementation="tcp", dtype="int8"),
    "ring": Way("tfdist, `implementation: ring` (gRPC)", "tfdist", implementation="ring"),
    "keras": Way("tf_keras fit, MultiWorkerMirrored", "keras"),
    "ddp": Way("PyTorch, DistributedDataParallel with gloo", "torch"),
}
ALONE = {way.loop: name for name, way in WAYS.items() if way.is_alone}
OURS = "tcp"

Found = dict[str, float]


def measure(made: Network, way: Way, model: str, link: str, workers: int, steps: int, torch: str) -> Found:
    """Train once; return the figures of a step, over the half of the windows that others disturbed least."""
    made.limit(link)
    order = {**way._asdict(), "model": model, "batch": BATCH, "steps": steps, "seconds": 0.0}
    order |= {"warm_up": WARM_UP, "window": WINDOW}
    script = PEERS / ("networked_torch.py" if way.loop == "torch" else "networked.py")
    python = torch if way.loop == "torch" else sys.executable
    with tempfile.TemporaryDirectory(prefix="networks-") as name:
        folder = Path(name)
        count = 1 if way.is_alone else workers
        made.run(made.cluster(worker=count), [python, str(script), json.dumps(order), name], folder, {})
        found = json.loads((folder / "found.json").read_text())
    train, exchange = (least_disturbed(found[part]) for part in ("train", "exchange"))
    speed = count * BATCH / train["wall"]
    return {**train, "examples": speed, "exchange": exchange["wall"]}


def least_disturbed(windows: Sequence[Found]) -> dict[str, float]:
    """Average the half of the windows in which others disturbed least; `outside` is their most."""
    kept = sorted(windows, key=lambda window: window["outside"])[: (len(windows) + 1) // 2]
    means = {name: statistics.fmean(window[name] for window in kept) for name in kept[0]}
    return {**means, "outside": kept[-1]["outside"]}


def row(name: str, link: str, workers: int, kept: Sequence[Mapping[str, Found]]) -> list[str]:
    """Make the row of a way."""
    way = WAYS[name]

    def each(formula: Any) -> list[float]:
        return [formula(found[name], found[ALONE[way.loop]], found) for found in kept]

    speed = spread(each(lambda own, _, found: own["examples"] / found["one"]["examples"]), ".2f")
    step = spread(each(lambda own, *_: 1000 * own["wall"]), ".0f")
    if way.is_alone:
        return [way.title, "", step, speed]
    ahead = spread(each(lambda own, _, found: found[OURS]["examples"] / own["examples"]), ".2f")
    sent = max(each(lambda own, *_: own["bytes"]))
    bound = each(lambda own, alone, _: max(alone["wall"], 8 * own["bytes"] / LINKS[link]))
    over = each(lambda own, alone, _: own["wall"] / max(alone["wall"], 8 * own["bytes"] / LINKS[link]))
    exchange = each(lambda own, alone, _: max(0.0, own["exchange"] - alone["exchange"]))
    hidden = each(hidden_share)
    return [
        way.title,
        link,
        step,
        speed,
        "" if name == OURS else ahead,
        f"{sent / 1e6:.3f}",
        f"{1000 * statistics.median(bound):.0f}",
        spread(over, ".2f"),
        f"{1000 * statistics.median(exchange):.0f}",
        spread(hidden, ".0%"),
    ]


def hidden_share(own: Found, alone: Found, _: Any) -> float:
    """Return the share of the exchange that the backward pass hides."""
    exchange = own["exchange"] - alone["exchange"]
    return (alone["wall"] + exchange - own["wall"]) / exchange


COLUMNS = (
    "link",
    "ms a step",
    "examples/s, of tfdist alone",
    "tcp is faster by",
    "MB sent",
    "bound, ms",
    "of the bound",
    "exchange alone, ms",
    "hidden",
)


def main() -> None:
    """Read the flags, measure in turns, and put each model's table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--links", nargs="*", choices=list(LINKS), default=list(LINKS))
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--others", type=float, default=0.2, help="share of a core's time for others")
    parser.add_argument("--peers", type=Path, default=CACHE, help="the folder of the peers' environments")
    flags: Any = parser.parse_args()
    if reason := why_no_network():
        sys.exit(f"benchmarks/networks.py: {reason}")
    onednn.ask_for()  # for all sides: else the ratios would be those of oneDNN
    torch = torch_in(flags.peers / "torch")
    wanted = {*flags.ways, OURS, "one"}
    wanted |= {ALONE[WAYS[name].loop] for name in wanted}
    names = [name for name in WAYS if name in wanted and (torch.version or WAYS[name].loop != "torch")]
    with (
        tempfile.TemporaryDirectory(prefix="networks-") as folder,
        network(Path(folder), flags.workers) as made,
    ):
        for model in flags.models:
            rows = []
            for link in flags.links:
                measures = [
                    partial(measure, made, WAYS[name], model, link, flags.workers, flags.steps, torch.python)
                    for name in names
                ]
                kept = undisturbed(f"{model}, {link}", measures, flags.rounds, flags.others)
                by_name = [dict(zip(names, found, strict=True)) for found in kept]
                rows += [row(name, link, flags.workers, by_name) for name in names]
            head = (
                f"Median and range of {flags.rounds} rounds of {flags.steps} steps; {flags.workers} workers,"
                f" a core each, {BATCH} examples a step and worker, SGD with momentum; {machine('tf_keras')},"
                f" PyTorch {torch.version or torch.problem}. {others(kept)}"
            )
            put(f"networks {model}", head, table((f"`{model}`", *COLUMNS), rows))


if __name__ == "__main__":
    main()
