"""Draw where matplotlib is installed, which nothing but plots needs."""

from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError
from tfdist.files import storage_errors

__all__ = ["check_plotting", "new_figure", "save"]


def check_plotting() -> None:
    """Refuse to plot where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        remedy = "Install it: pip install 'tfdist[plots]'; or leave --plot out"
        raise ConfigError("--plot", "needs matplotlib, which is not installed", remedy=remedy) from None


def new_figure(width: float, height: float) -> Any:
    """Give an empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file, of the kind that its name says."""
    with storage_errors(path.parent):
        figure.savefig(path, dpi=150)
