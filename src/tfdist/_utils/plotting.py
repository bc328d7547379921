"""Draw plots, if matplotlib is installed; only plots need it."""

from pathlib import Path
from typing import Any

from tfdist._utils.write_files import storage_errors
from tfdist.errors import ConfigError


def check_plotting(path: Path) -> None:
    """Raise a ConfigError if matplotlib is not installed, or draws no file of this name."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        remedy = "Install it: pip install 'tfdist[plots]'; or leave out --plot"
        raise ConfigError("--plot", "needs matplotlib, which is not installed", remedy=remedy) from None
    suffix, known = path.suffix.removeprefix(".").lower(), FigureCanvasBase.get_supported_filetypes()
    if suffix and suffix not in known:
        raise ConfigError("--plot", expected=f"a name in .{', .'.join(sorted(known))}", received=str(path))


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; width and height are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file; its suffix selects the format."""
    with storage_errors(path.parent):
        figure.savefig(path, dpi=150)
