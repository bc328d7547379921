"""Tell how fast the links between the hosts are, and what speed-up the cluster may expect from them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.diagnostics.doctor.finding import CLUSTER, Finding, Findings
from tfdist.diagnostics.doctor.links import Links
from tfdist.diagnostics.doctor.parts_of_run_records import Part
from tfdist.diagnostics.doctor.protocol import Measured
from tfdist.errors import ConfigError
from tfdist.strategies.strategy_names import strategy_name
from tfdist.trainer.config import Config

if TYPE_CHECKING:
    from tfdist.simulation.setup import Setup

_RING_BUCKET = 4e6  # bytes, see docs/exchange.md; it matters to mirrored workers alone
_MOST_LINES = 20
_WORTH_NAMING = 1.05
_STRAGGLES = 0.8  # of the median speed
_find = Findings(CLUSTER)


def check_links(links: Links) -> Iterator[Finding]:
    """Yield the speed of each link; of many, only the slowest ones."""
    failed = {pair: link.problem for pair, link in links.items() if link.problem}
    for (first, second), problem in failed.items():
        remedy = "Run the command again for all tasks at the same time, with --measure for each"
        yield _find.warning("link", f"{first} to {second} was not measured: {problem}", remedy)
    measured = sorted(
        ((pair, link) for pair, link in links.items() if not link.problem),
        key=lambda item: item[1].bytes_per_second,
    )
    for (first, second), link in measured[:_MOST_LINES]:
        speed, trip = link.bytes_per_second / 1e6, 1e3 * link.round_trip
        yield _find.ok(
            "link", f"{first} to {second}: {speed:.{0 if speed >= 10 else 2}f} MB/s, round trip {trip:.2g} ms"
        )
    if len(measured) > _MOST_LINES:
        yield _find.ok("link", f"{len(measured) - _MOST_LINES} more links are faster than these")


def expected_speed(
    cluster: ClusterConfig,
    config: Config,
    links: Links,
    speeds: Mapping[Task, float],
    parts: Mapping[str, Part],
) -> Iterator[Finding]:
    """Yield the simulated speed-up of the cluster, and what limits it, from what was measured.

    Args:
        cluster: The cluster.
        config: The config.
        links: The links that were measured.
        speeds: The examples per second of each task that trains, by itself.
        parts: The parts of the run, by name; nothing follows without model and speed.
    """
    measured = [link for link in links.values() if not link.problem]
    known = {task: speeds[task] for task in cluster.computing_tasks() if speeds.get(task)}
    if not measured or not known or not {"model", "speed"} <= parts.keys():
        return
    try:
        setup = _setup(cluster, config, measured, known, parts)
    except ConfigError:  # the strategy is unknown, which has a finding of its own
        return
    if setup is not None:
        yield _expected(setup, len(cluster.computing_tasks()), known)


def _setup(
    cluster: ClusterConfig,
    config: Config,
    measured: Sequence[Measured],
    speeds: Mapping[Task, float],
    parts: Mapping[str, Part],
) -> "Setup | None":
    from tfdist.simulation.setup import Compute, Exchange, Network, Servers, Setup

    name, sizes = strategy_name(config.strategy.name, cluster), parts["model"].sizes
    if name == "one_device" or name == "mirrored" or name == "auto" or sizes is None:
        return None
    return Setup(
        strategy=name,
        compute=Compute(seconds_per_example=1 / min(speeds.values()), batch_size=parts["speed"].batch_size),
        exchange=Exchange(
            dense_bytes=sum(variable.value for variable in sizes.variables),
            dtype=config.communication.dtype or "float32",
            bucket_bytes=_RING_BUCKET,
        ),
        network=Network(
            bytes_per_second=min(link.bytes_per_second for link in measured),
            latency=max(link.round_trip for link in measured) / 2,
        ),
        servers=Servers(count=max(1, cluster.size("ps"))),
    )


def _expected(setup: "Setup", workers: int, speeds: Mapping[Task, float]) -> Finding:
    from tfdist.simulation.forecast import forecast

    expected = forecast(setup, workers)
    found = (
        f"{expected.speedup:.2f} times one process, {expected.examples_per_second:.0f} examples/s with"
        f" {workers} workers of {setup.strategy} in batches of {setup.compute.batch_size}, simulated from"
        " these links"
    )
    network = setup.network
    freed = {
        "the bandwidth of the slowest link": replace(network, bytes_per_second=1e15),
        "the latency of the slowest link": replace(network, latency=0.0),
    }
    gains = {
        what: forecast(replace(setup, network=other), workers).speedup / expected.speedup
        for what, other in freed.items()
    }
    what = max(gains, key=lambda name: gains[name])
    slowest = min(speeds, key=lambda task: speeds[task])
    if gains[what] >= _WORTH_NAMING:
        limit = f"{what} (without it, {gains[what] * expected.speedup:.2f} times)"
    elif speeds[slowest] < _STRAGGLES * statistics.median(speeds.values()):
        limit = f"{slowest}, which computes {speeds[slowest]:.0f} examples/s"
    else:
        limit = "computing"
    return _find.ok("speed-up", f"{found}; limited by {limit}")
