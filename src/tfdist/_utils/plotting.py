"""Draw plots, if matplotlib is installed; only plots need it."""

from pathlib import Path
from typing import Any

from tfdist._utils.check_and_expand_paths import local_path
from tfdist._utils.write_files import storage_errors
from tfdist.errors import ConfigError


def file_to_draw(text: str) -> Path:
    """Return the file that --plot names, in a folder that exists; without a suffix it is a PNG.

    Raises:
        ConfigError: matplotlib is not installed, or draws no file of this name.
        StorageError: The folder cannot be made.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        remedy = "Install it: pip install 'tfdist[plots]'; or leave out --plot"
        raise ConfigError("--plot", "needs matplotlib, which is not installed", remedy=remedy) from None
    path = local_path(text, "--plot")
    if path.is_dir() or text.endswith("/"):
        raise ConfigError("--plot", expected="a file", received=f"the folder {text}", remedy="Add a name")
    suffix, known = path.suffix.removeprefix(".").lower(), FigureCanvasBase.get_supported_filetypes()
    if suffix and suffix not in known:
        raise ConfigError("--plot", expected=f"a name in .{', .'.join(sorted(known))}", received=text)
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path if suffix else path.with_name(f"{path.name.rstrip('.')}.png")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; width and height are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file; its suffix selects the format."""
    with storage_errors(path.parent):
        figure.savefig(path, dpi=150)
