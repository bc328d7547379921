"""Predict how fast clusters of many sizes train, from what one worker takes and what the links carry.

    python -m tfdist.simulate --config examples/simulate/inception.yaml --workers 1..1000 --plot scaling.png
    python -m tfdist.simulate --config examples/simulate/inception.yaml --workers 50 --advise
    python -m tfdist.simulate --check

--check holds the simulation against published points, and against this machine. TensorFlow is not loaded but
for the latter.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.errors import ConfigError, shown
from tfdist.plots import check_plotting

if TYPE_CHECKING:
    from tfdist.simulation import Forecast, Setup

__all__ = ["main"]

STRATEGIES = ("parameter_server", "parameter_server_sync", "multi_worker_mirrored")
CHECKS = ("both", "published", "machine")
_MOST_WORKERS = 1000
_ROUNDS = 3  # of measuring this machine


def main(
    config: str | None,
    workers: str = "1..100",
    plot: str | None = None,
    advise: bool = False,
    check: str | None = None,
) -> None:
    """Simulate what a file describes, or check the simulation."""
    if check:
        _check(check)
    elif not config:
        remedy = "Name a file, such as examples/simulate/inception.yaml; or say --check"
        raise ConfigError("--config", "is missing", remedy=remedy)
    if config:
        from tfdist.simulation import read_setup

        _simulate(read_setup(config), _counts(workers), plot, advise)


def _simulate(setup: "Setup", counts: list[int], plot: str | None, advise: bool) -> None:
    from msgspec.structs import replace

    from tfdist.simulation import advise as advice
    from tfdist.simulation import draw, forecast

    if plot:
        check_plotting()
    forecasts: dict[str, list[Forecast]] = {}
    for strategy in STRATEGIES:
        print(f"{strategy}{', as the file says' if strategy == setup.strategy else ''}\n{_HEAD}", flush=True)
        forecasts[strategy] = []
        for count in counts:
            found = forecast(replace(setup, strategy=strategy), count)
            forecasts[strategy].append(found)
            print(_row(found), flush=True)
        print()
    if plot:
        draw(forecasts, Path(plot))
        print(f"drawn in {plot}")
    if advise:
        most = counts[-1]
        print(f"With {most} workers of {setup.strategy}, by itself each would bring:", flush=True)
        changes = advice(setup, most)
        for change in changes:
            print(f"  {change.gain:+7.0%}  {change.what}")
        if not changes:
            print("  nothing here helps: the workers compute nearly all the time")


_HEAD = "workers  examples/s  speedup  efficiency    GB/s  staleness  waiting"


def _row(found: "Forecast") -> str:
    reached = f"{found.examples_per_second:10.0f}  {found.speedup:7.1f}  {found.efficiency:10.0%}"
    moved = f"{found.bytes_per_second / 1e9:6.2f}"
    return f"{found.workers:7}  {reached}  {moved}  {found.staleness:9.1f}  {found.waiting:7.0%}"


def _check(which: str) -> None:
    from tfdist.simulation import check_machine, check_published

    if which in ("both", "published"):
        print("Against what was published, on hardware that is assumed:")
        for point in check_published():
            print(f"  {point}\n      {point.assumed}")
    if which in ("both", "machine"):
        has = f"{os.cpu_count()} cores; load before: {os.getloadavg()[0]:.1f}"
        print(f"Against this machine ({has}), from what 1 worker takes beside a ps;", end=" ")
        print(f"median and range of {_ROUNDS} rounds:", flush=True)
        for prediction in check_machine(_ROUNDS):
            print(f"  {prediction}", flush=True)


def _counts(text: str) -> list[int]:
    """Read `1..1000` as 1, 2, 5, 10 and so on, or `1,2,4` as it stands."""
    bounds = re.fullmatch(r"([0-9]{1,5})\.\.([0-9]{1,5})", text)
    if bounds:
        least, most = int(bounds[1]), int(bounds[2])
        steps = [digit * 10**power for power in range(5) for digit in (1, 2, 5)]
        found = sorted({least, most, *(each for each in steps if least <= each <= most)})
    elif re.fullmatch(r"[0-9]{1,5}(,[0-9]{1,5})*", text):
        found = sorted({int(each) for each in text.split(",")})
    else:
        raise ConfigError("--workers", expected="1..1000 or 1,2,4", received=shown(text))
    if not 1 <= found[0] <= found[-1] <= _MOST_WORKERS or (bounds and least > most):
        expected = f"numbers in 1…{_MOST_WORKERS}, the smaller one first"
        raise ConfigError("--workers", expected=expected, received=shown(text))
    return found


if __name__ == "__main__":
    from absl import flags

    from tfdist._app import run

    flags.DEFINE_string("config", None, "The YAML file that says what is simulated; see examples/simulate/.")
    flags.DEFINE_string(
        "workers", "1..100", "How many workers: 1..1000, in steps of 1, 2, 5, 10 …, or 1,2,4."
    )
    flags.DEFINE_string("plot", None, "Where to draw it (needs matplotlib).")
    flags.DEFINE_bool(
        "advise", False, "Say what to change first for the most workers, and what it would bring."
    )
    flags.DEFINE_enum(
        "check", None, CHECKS, "Hold the simulation against published points, this machine, or both."
    )
    run(main)
