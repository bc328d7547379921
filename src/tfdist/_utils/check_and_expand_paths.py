"""Check and expand paths that users name: with no error for one that may not be searched, or one line.

Before Python 3.14, `Path.exists` raises where a folder on the way may not be searched, or a name is too long.
"""

import os
from pathlib import Path

from tfdist.errors import ConfigError, shown


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a path exists, as far as this user can see."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file, as far as this user can see."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder, as far as this user can see."""
    return os.path.isdir(path)  # noqa: PTH112


def expanded_path(path: Path, where: str, remedy: str = "Write the whole path") -> Path:
    """Return a path with a home folder in place of ~ or ~name.

    Raises:
        ConfigError: There is no such home folder.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ConfigError(where, f"no home folder is known for {shown(str(path))}", remedy=remedy) from None


def current_folder() -> Path | None:
    """Return the current folder; None if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def absolute_path(path: Path, where: str) -> Path:
    """Return a path from the root.

    Raises:
        ConfigError: It begins at the current folder, which was removed.
    """
    if path.is_absolute():
        return path
    if (here := current_folder()) is None:
        remedy = "Change to another folder, or write the whole path"
        raise ConfigError(where, f"{path} is in the current folder, which was removed", remedy=remedy)
    return here / path
