"""Draw the simulated speed of each strategy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist._utils.plotting import new_figure, save
from tfdist.simulation.simulated_speed import Forecast

__all__ = ["draw"]


def draw(forecasts: Mapping[str, Sequence[Forecast]], path: Path) -> None:
    """Draw speedup, efficiency and bytes over the number of workers, with a line for each strategy."""
    figure = new_figure(13, 4)
    shown = (
        ("speedup", "times one process", 1.0),
        ("efficiency", "of one process each, %", 100.0),
        ("bytes_per_second", "on all links together, GB/s", 1e-9),
    )
    for axes, (name, label, factor) in zip(figure.subplots(1, len(shown)), shown, strict=True):
        for strategy, results in forecasts.items():
            points = [factor * getattr(result, name) for result in results]
            axes.plot([result.workers for result in results], points, marker=".", label=strategy)
        axes.set(
            xscale="log", yscale="linear" if name == "efficiency" else "log", xlabel="workers", ylabel=label
        )
        axes.legend()
    save(figure, path)
