"""Read files that others may have damaged or named oddly: never without end, and with one kind of error."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tfdist._utils.write_files import storage_errors, temporary_folder

_MOST_BYTES = 64 << 20
_GLOB_CHARACTERS = frozenset("*?[\\")  # which TensorFlow takes for a pattern
_FALLBACK = "/tmp"  # noqa: S108  # only a link is there, in a new folder of this user


@contextlib.contextmanager
def opened_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        OSError: It cannot be opened, or it is a FIFO, a device or a folder, which could block or never end.
    """
    # With O_NONBLOCK, a FIFO that nobody writes to does not block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _check_mode(os.fstat(file.fileno()).st_mode, path)
        yield file


def check_regular(path: Path) -> None:
    """Raise OSError for a path that is not a regular file, before a library opens it."""
    _check_mode(path.stat().st_mode, path)


def read_text_file(path: Path) -> str:
    """Return the text of a file of at most 64 MiB.

    Raises:
        OSError: As for `opened_regular`.
        ValueError: The file is longer, or not UTF-8.
    """
    with opened_regular(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"is longer than {_MOST_BYTES >> 20} MiB")
    return data.decode("utf-8")


def read_json_file(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: As for `opened_regular`.
        ValueError: As for `read_text_file`, or the file is not JSON.
    """
    try:
        return json.loads(read_text_file(path))
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _check_mode(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))


@contextlib.contextmanager
def glob_free_path(path: Path) -> Iterator[Path]:
    """Yield a path without glob characters to a file or a folder, for the duration of the block.

    TensorFlow writes a checkpoint or a SavedModel to the path as it is, but reads it by a pattern, and has
    no way to escape one. So a name with such characters is read through a link.
    """
    if not _has_glob(path):
        yield path
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("tfdist-link-"))
        if _has_glob(Path(folder)):
            folder = stack.enter_context(temporary_folder("tfdist-link-", within=_FALLBACK))
        suffix = "" if _has_glob(Path(path.suffix)) else path.suffix  # Keras reads the format from it
        link = Path(folder, f"link{suffix}")
        with storage_errors(link):
            link.symlink_to(path.absolute())
        yield link


def _has_glob(path: Path) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(str(path))
