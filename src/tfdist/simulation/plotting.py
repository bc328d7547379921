"""Draw what the simulation says of each strategy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.files import storage_errors
from tfdist.simulation.forecasting import Forecast

__all__ = ["check_plotting", "draw"]


def check_plotting() -> None:
    """Refuse to plot where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        remedy = "Install it: pip install 'tfdist[plots]'; or leave --plot out"
        raise ConfigError("--plot", "needs matplotlib, which is not installed", remedy=remedy) from None


def draw(forecasts: Mapping[str, Sequence[Forecast]], path: Path) -> None:
    """Draw speedup, efficiency and bytes over the number of workers, a line a strategy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    shown = (
        ("speedup", "times one process", 1.0),
        ("efficiency", "of one process each, %", 100.0),
        ("bytes_per_second", "on all links together, GB/s", 1e-9),
    )
    for axes, (name, label, factor) in zip(figure.subplots(1, len(shown)), shown, strict=True):
        for strategy, found in forecasts.items():
            points = [factor * getattr(each, name) for each in found]
            axes.plot([each.workers for each in found], points, marker=".", label=strategy)
        axes.set(
            xscale="log", yscale="linear" if name == "efficiency" else "log", xlabel="workers", ylabel=label
        )
        axes.legend()
    with storage_errors(path.parent):
        figure.savefig(path, dpi=150)
