"""Find the changes of a simulated cluster that make it faster."""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tfdist.simulation.forecast import forecast
from tfdist.simulation.setup import BYTES, Setup


class Change(NamedTuple):
    """One change of a setup, and its effect."""

    what: str
    gain: float


def advise(setup: Setup, workers: int) -> list[Change]:
    """Simulate each change by itself; return those that help by 1 % or more, the best first."""
    now = forecast(setup, workers).examples_per_second
    changes = []
    for what, changed in _changes(setup):
        changes.append(Change(what, forecast(changed, workers).examples_per_second / now - 1))
    return sorted((change for change in changes if change.gain >= 0.01), key=lambda change: -change.gain)


def _changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    servers, compute, exchange = setup.servers, setup.compute, setup.exchange
    has_ps = setup.strategy != "multi_worker_mirrored"
    if has_ps:
        yield (
            f"{2 * servers.count} ps in place of {servers.count}",
            replace(setup, servers=replace(servers, count=2 * servers.count)),
        )
    yield (
        f"batches of {2 * compute.batch_size} in place of {compute.batch_size}",
        replace(setup, compute=replace(compute, batch_size=2 * compute.batch_size)),
    )
    if BYTES[exchange.dtype] > 2:
        yield "a 16-bit exchange (bfloat16)", replace(setup, exchange=replace(exchange, dtype="bfloat16"))
    if BYTES[exchange.dtype] > 1:
        yield "an 8-bit exchange (int8)", replace(setup, exchange=replace(exchange, dtype="int8"))
    for strategy, what in (
        ("multi_worker_mirrored", "mirrored workers in place of ps"),
        ("parameter_server", "workers at their own pace, beside ps"),
        ("parameter_server_sync", "workers in step, beside ps"),
    ):
        if strategy != setup.strategy:
            yield what, replace(setup, strategy=strategy)
