"""Predict how fast clusters of many sizes train, from what one worker takes and what the links carry.

    tfdist simulate --example > inception.yaml
    tfdist simulate --config inception.yaml --workers 1..1000 --plot scaling.png
    tfdist simulate --config inception.yaml --workers 50 --advise
    tfdist simulate --check

--check compares the simulation with published results. TensorFlow is not loaded.
"""

from typing import TYPE_CHECKING, Annotated

from tfdist._utils.check_and_expand_paths import local_path
from tfdist._utils.plotting import file_to_draw
from tfdist.cli._check_values import worker_counts
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.errors import ConfigError
from tfdist.trainer.shipped_configs import simulated_example

if TYPE_CHECKING:
    from tfdist.simulation.forecast import Forecast
    from tfdist.simulation.setup import Setup

STRATEGIES = ("parameter_server", "parameter_server_sync", "multi_worker_mirrored")
_WORKERS, _MOST_WORKERS = "1..100", 1000


def main(
    config: Annotated[str | None, Flag("The YAML file that says what is simulated.")],
    workers: Annotated[
        str, Flag("How many workers: 1..1000, in steps of 1, 2, 5, 10 …, or 1,2,4.")
    ] = _WORKERS,
    plot: Annotated[str | None, Flag("The PNG to draw the result in (needs matplotlib).")] = None,
    advise: Annotated[bool, Flag("Print which change helps the largest cluster most, and how much.")] = False,
    check: Annotated[bool, Flag("Compare the simulation with published results.")] = False,
    example: Annotated[bool, Flag("Print a file for --config: Inception V3 on GPUs of 2016.")] = False,
) -> None:
    """Simulate what a file describes, or check the simulation."""
    local_path(plot or "", "--plot")  # an error before the simulation
    if (check or example) and not config:
        for name, is_given in (("workers", workers != _WORKERS), ("plot", plot), ("advise", advise)):
            if is_given:
                remedy = "Add --config, or leave it out"
                problem = f"has no effect with --{'check' if check else 'example'} alone"
                raise ConfigError(f"--{name}", problem, remedy=remedy)
    if example:
        print(simulated_example().read_text("utf-8"), end="")
    if check:
        _check()
    elif not config and not example:
        remedy = "Name a file, such as the one that --example prints; or use --check"
        raise ConfigError("--config", "is missing", remedy=remedy)
    if config:
        from tfdist.simulation.setup import read_setup

        _simulate(read_setup(config), _counts(workers), plot, advise)


def _simulate(setup: "Setup", counts: list[int], plot: str | None, advise: bool) -> None:
    from msgspec.structs import replace

    from tfdist.simulation.forecast import draw, forecast
    from tfdist.simulation.suggest_changes import advise as advice

    file = file_to_draw(plot) if plot else None
    forecasts: dict[str, list[Forecast]] = {}
    for strategy in STRATEGIES:
        print(f"{strategy}{', as the file says' if strategy == setup.strategy else ''}\n{_HEAD}", flush=True)
        forecasts[strategy] = []
        for count in counts:
            result = forecast(replace(setup, strategy=strategy), count)
            forecasts[strategy].append(result)
            print(_row(result), flush=True)
        print()
    if file:
        draw(forecasts, file)
        print(f"drawn in {file}")
    if advise:
        most = counts[-1]
        print(f"With {most} workers of {setup.strategy}, by itself each would bring:", flush=True)
        changes = advice(setup, most)
        for change in changes:
            print(f"  {change.gain:+7.0%}  {change.what}")
        if not changes:
            print("  none of these changes helps: the workers compute nearly all the time")


_HEAD = "workers  examples/s  speedup  efficiency    GB/s  staleness  waiting"


def _row(forecast: "Forecast") -> str:
    reached = f"{forecast.examples_per_second:10.0f}  {forecast.speedup:7.1f}  {forecast.efficiency:10.0%}"
    moved = f"{forecast.bytes_per_second / 1e9:6.2f}"
    return f"{forecast.workers:7}  {reached}  {moved}  {forecast.staleness:9.1f}  {forecast.waiting:7.0%}"


def _check() -> None:
    from tfdist.simulation.published import check_published

    print("Against what was published, on hardware that is assumed:")
    for point in check_published():
        print(f"  {point}\n      {point.assumed}")


def _counts(text: str) -> list[int]:
    """Parse `1..1000` as 1, 2, 5, 10 and so on, or `1,2,4` as these numbers."""
    counts = worker_counts(text, _MOST_WORKERS)
    steps = {digit * 10**power for power in range(5) for digit in (1, 2, 5)} | {counts[0], counts[-1]}
    return [count for count in counts if count in steps or ".." not in text]


if __name__ == "__main__":
    run(main)
