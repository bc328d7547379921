"""Read folders whose names have glob characters, which TensorFlow takes for a pattern."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["glob_free_path"]

_GLOB_CHARACTERS = frozenset("*?[\\")
_FALLBACK = "/tmp"  # noqa: S108  # only a link is there, in a new folder of this user


@contextlib.contextmanager
def glob_free_path(path: Path) -> Iterator[Path]:
    """Yield a path without glob characters to a file or a folder, for the duration of the block.

    TensorFlow writes a checkpoint or a SavedModel to the path as it is, but reads it by a pattern, and has
    no way to escape one. So a name with such characters is read through a link.
    """
    if not _has_glob(path):
        yield path
        return
    temporary = None if not _has_glob(Path(tempfile.gettempdir())) else _FALLBACK
    with tempfile.TemporaryDirectory(prefix="tfdist-link-", dir=temporary) as folder:
        suffix = "" if _has_glob(Path(path.suffix)) else path.suffix  # Keras reads the format from it
        link = Path(folder, f"link{suffix}")
        link.symlink_to(path.absolute())
        yield link


def _has_glob(path: Path) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(str(path))
