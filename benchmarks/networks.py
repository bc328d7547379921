"""Measure training over networks of known speed, beside TensorFlow's own exchange, PyTorch and Horovod.

    python benchmarks/networks.py [--workers 2] [--models mnist_cnn …] [--links 1gbit …] [--ways tcp ddp …]

Each task runs in a network namespace of its own, on a bridge, as on a machine of its own: no memory is
shared, and both ends of its link are limited. A worker has one core and one thread; the chief and the ps have
no core of their own. Each round runs every way of training once, one after the other; one process of each
software is always among them. Where there are more workers than cores, no model computes: it sleeps for as
long as a step of one process of tfdist takes, layer by layer, in proportion to their multiplications.

It needs root, for `ip netns`. tf_keras has to be installed; PyTorch and Horovod get environments of their own
in the user's cache. What cannot be installed is left out, and the page says why.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from environments import torch_in
from horovod_peer import RELEASE, install
from network_table import COLUMNS, Figures, Row, row
from network_tasks import LINKS, Network, TaskError, network, why_no_network
from results import machine, put, table
from rounds import others, undisturbed

import tfdist
from tfdist.launcher.onednn_variables import enable_onednn
from tfdist.launcher.share_cores_and_gpus import own_cores

PEERS = Path(__file__).parent / "peers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tfdist" / "benchmarks"
MODELS = ("mnist_cnn", "cifar10_cnn", "transformer", "two_tower")
BATCH = 128  # of each worker
WARM_UP, WINDOW = 5, 5  # steps
MOST_OUTSIDE = 0.2  # of a core's time
PS_WORKERS = 2


class Way(NamedTuple):
    """Describe how a model is trained.

    Attributes:
        title: Its name in the table.
        loop: The software.
        ours: The way of tfdist to compare it with; empty for one process.
        buckets: The bytes after which the first bucket and the others are full; empty for tfdist's own.
    """

    title: str
    loop: str
    ours: str = ""
    implementation: str = ""
    dtype: str = ""
    strategy: str = ""
    encryption: str = ""
    buckets: tuple[int, ...] = ()


_MB = 1 << 20
_ASYNC, _SYNC = "parameter_server", "parameter_server_sync"
WAYS = {
    "one": Way("tfdist, one process", "tfdist"),
    "one_keras": Way("tf_keras fit, one process", "keras"),
    "one_torch": Way("PyTorch, one process", "torch"),
    "one_horovod": Way("Keras 2.12 with Horovod, one process", "horovod"),
    "tcp": Way("tfdist, `implementation: tcp`", "tfdist", "tcp", "tcp"),
    "bfloat16": Way("tfdist, tcp, gradients as bfloat16", "tfdist", "tcp", "tcp", "bfloat16"),
    "int8": Way("tfdist, tcp, gradients as int8", "tfdist", "tcp", "tcp", "int8"),
    "tls": Way("tfdist, tcp, `encryption: tls`", "tfdist", "tcp", encryption="tls"),
    "small_buckets": Way("tfdist, tcp, buckets of 1 MB", "tfdist", "tcp", "tcp", buckets=(_MB // 4, _MB)),
    "large_buckets": Way("tfdist, tcp, buckets of 16 MB", "tfdist", "tcp", "tcp", buckets=(_MB, 16 * _MB)),
    "one_bucket": Way("tfdist, tcp, one bucket", "tfdist", "tcp", "tcp", buckets=(1 << 40, 1 << 40)),
    "ring": Way("tfdist, `implementation: ring` (gRPC)", "tfdist", "tcp", "ring"),
    "keras": Way("tf_keras fit, MultiWorkerMirrored", "keras", "tcp"),
    "ddp": Way("PyTorch, DistributedDataParallel with gloo", "torch", "tcp"),
    "horovod": Way("Keras 2.12 with Horovod and gloo", "horovod", "tcp"),
    "async": Way("tfdist, asynchronous ps, tcp", "tfdist", "async", "tcp", strategy=_ASYNC),
    "async_tls": Way("tfdist, asynchronous ps, TLS", "tfdist", "async", strategy=_ASYNC, encryption="tls"),
    "async_grpc": Way("tfdist, asynchronous ps, gRPC", "tfdist", "async", "grpc", strategy=_ASYNC),
    "sync": Way("tfdist, synchronous ps, tcp", "tfdist", "async", "tcp", strategy=_SYNC),
    "sync_grpc": Way("tfdist, synchronous ps, gRPC", "tfdist", "async", "grpc", strategy=_SYNC),
    "keras_ps": Way("tf_keras fit, ParameterServerStrategy", "keras", "async", strategy=_ASYNC),
}
ALONE = {way.loop: name for name, way in WAYS.items() if not way.ours}


class Software(NamedTuple):
    """Describe an environment: its Python and variables, what it is, and the reason if there is none."""

    python: str
    name: str
    problem: str = ""
    environ: Mapping[str, str] = MappingProxyType({})


class Setup(NamedTuple):
    """Describe what all ways of a benchmark have in common.

    Attributes:
        made: The network.
        workers: How many workers there are, where there are several.
        steps: The steps of each worker that are measured.
        software: The environments, by the name that ways have for them.
    """

    made: Network
    workers: int
    steps: int
    software: Mapping[str, Software]

    def measure(self, name: str, model: str, link: str, seconds: float = 0.0) -> dict[str, float]:
        """Train once, and then with the exchange alone; return what `Figures` names."""
        way = WAYS[name]
        self.made.limit(link)
        workers = self.workers if way.ours else 1
        order = {**way._asdict(), "model": model, "batch": BATCH, "workers": workers, "seconds": seconds}
        order |= {"steps": self.steps, "warm_up": WARM_UP, "window": WINDOW}
        ending = "_servers" if way.strategy else "_torch" if way.loop == "torch" else ""
        software = self.software[way.loop]
        with tempfile.TemporaryDirectory(prefix="networks-") as folder:
            words = [software.python, str(PEERS / f"networked{ending}.py"), json.dumps(order), folder]
            cluster = self.made.cluster(worker=workers, **({"chief": 1, "ps": 1} if way.strategy else {}))
            found = self.made.run(cluster, words, Path(folder), software.environ)
        train, exchange = (_least_disturbed(found[part]) for part in ("train", "exchange"))
        wall = train["wall"]
        figures = Figures(wall, exchange["wall"], workers * BATCH / wall, train["bytes"], train["outside"])
        print(f"{model}, {link}, {name}: {1000 * wall:.0f} ms a step", flush=True)
        return figures._asdict()

    def ways(self, wanted: Sequence[str]) -> list[str]:
        """Return the ways to measure: those that are wanted, and those that they are compared with."""
        there = {name for name in ("one", *wanted) if not self.software[WAYS[name].loop].problem}
        there |= {WAYS[name].ours for name in there if WAYS[name].ours}
        there |= {ALONE[WAYS[name].loop] for name in there}
        return [name for name in WAYS if name in there]


def _least_disturbed(windows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average the half of the windows in which others disturbed least; `outside` is their most."""
    kept = sorted(windows, key=lambda window: window["outside"])[: (len(windows) + 1) // 2]
    means = {name: statistics.fmean(window[name] for window in kept) for name in kept[0]}
    return {**means, "outside": kept[-1]["outside"]}


def software_in(place: Path, wanted: Collection[str]) -> dict[str, Software]:
    """Make the environments of all software that the ways need."""
    keras = "" if util.find_spec("tf_keras") else "tf_keras, not installed: pip install tf_keras"
    # Tasks have an environment of their own, in which another tfdist may be installed.
    ours = {"PYTHONPATH": str(Path(str(tfdist.__file__)).parents[1])}
    found = {"tfdist": Software(sys.executable, machine(), environ=ours)}
    if "keras" in wanted:
        name = "" if keras else f"tf_keras {metadata.version('tf_keras')}"
        found["keras"] = Software(sys.executable, name, keras, ours)
    if "torch" in wanted:
        torch = torch_in(place / "torch")
        found["torch"] = Software(
            torch.python, f"PyTorch {torch.version}", torch.problem and f"PyTorch, {torch.problem}"
        )
    if "horovod" in wanted:
        horovod = install(place / "horovod")
        problem = horovod.problem and f"Horovod, {horovod.problem}"
        environ = {"PYTHONPATH": str(horovod.place / "shared")}
        python = str(horovod.place / "bin" / "python")
        found["horovod"] = Software(python, RELEASE.replace("==", " "), problem, environ)
    return found


def checked(setup: Setup) -> Setup:
    """Try a few steps with Horovod, if it is there: what was built may not run."""
    software = dict(setup.software)
    if "horovod" in software and not software["horovod"].problem:
        try:
            setup._replace(steps=WINDOW).measure("horovod", "mnist_cnn", "unlimited")
        except TaskError as error:
            print(error, flush=True)
            software["horovod"] = software["horovod"]._replace(
                problem="Horovod, installed, but does not run here"
            )
    return setup._replace(software=software)


def rows_of(names: Sequence[str], link: str, kept: Sequence[Mapping[str, Figures]]) -> list[list[str]]:
    """Make the rows of a link."""
    rows = []
    for name in names:
        way = WAYS[name]
        ours = way.ours if way.ours != name else None
        rows.append(row(Row(way.title, link if way.ours else "", name, ALONE[way.loop], "one", ours), kept))
    return rows


def table_of(setup: Setup, model: str, link: str, ways: Sequence[str], flags: Any) -> None:
    """Measure ways in turns, and put their table into the page."""
    seconds, computing = 0.0, "a core each"
    if flags.workers > len(own_cores()):
        seconds = setup.measure("one", model, "unlimited")["wall"]
        computing = f"that sleep for {1000 * seconds:.0f} ms in place of computing"
    names = setup.ways(ways)
    measures = [partial(setup.measure, name, model, link, seconds) for name in names]
    kept = undisturbed(f"{model}, {link}", measures, flags.rounds, flags.others)
    by_name = [{name: Figures(**each) for name, each in zip(names, found, strict=True)} for found in kept]
    rows = rows_of(names, link, by_name)
    there = [each for each in setup.software.values() if not each.problem]
    rows += [[f"left out: {each.problem}"] for each in setup.software.values() if each.problem]
    head = (
        f"Links: {link}. Median and range of {flags.rounds} rounds of {flags.steps} steps; {flags.workers}"
        f" workers, {computing}; {BATCH} examples a step and worker, SGD with momentum;"
        f" {', '.join(each.name for each in there)}. {others(kept)}"
    )
    found = table((f"`{model}`", *COLUMNS), rows)
    kind = " ps" if WAYS[ways[0]].strategy else ""
    kind += " tls" if any(WAYS[name].encryption for name in ways) else ""
    kind += " buckets" if any(WAYS[name].buckets for name in ways) else ""
    kind += " horovod" if {WAYS[name].loop for name in ways} == {"tfdist", "horovod"} else ""
    put(f"networks {model} {flags.workers} {link}{kind}", head, found, before="networks more")


def flags_of() -> Any:
    """Read the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, choices=(2, 4, 8), default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--links", nargs="+", choices=list(LINKS), default=list(LINKS))
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), help="by default all that so many workers have"
    )
    parser.add_argument("--steps", type=int, default=20, help="of each worker")
    parser.add_argument(
        "--others", type=float, default=MOST_OUTSIDE, help="share of a core's time for others"
    )
    parser.add_argument("--peers", type=Path, default=CACHE, help="the folder of the peers' environments")
    flags: Any = parser.parse_args()
    flags.ways = flags.ways or [
        name for name, way in WAYS.items() if not way.buckets and (flags.workers == 2 or not way.strategy)
    ]
    if flags.workers != PS_WORKERS and any(WAYS[name].strategy for name in flags.ways):
        sys.exit("benchmarks/networks.py: --ways: parameter servers have two workers; expected --workers 2")
    return flags


def main() -> None:
    """Measure all models."""
    flags = flags_of()
    if reason := why_no_network():
        sys.exit(f"benchmarks/networks.py: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the namespaces would stay
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    software = software_in(flags.peers, {WAYS[name].loop for name in flags.ways})
    tasks = max(flags.workers, 4 if any(WAYS[name].strategy for name in flags.ways) else 0)
    with tempfile.TemporaryDirectory(prefix="networks-") as folder, network(Path(folder), tasks) as made:
        try:
            setup = checked(Setup(made, flags.workers, flags.steps, software))
            for model in flags.models:
                for link, is_of_servers in itertools.product(flags.links, (False, True)):
                    ways = [name for name in flags.ways if bool(WAYS[name].strategy) == is_of_servers]
                    if ways:
                        table_of(setup, model, link, ways, flags)
        except TaskError as error:
            sys.exit(f"benchmarks/networks.py: {error}")


if __name__ == "__main__":
    main()
