"""Write files and folders so that whoever looks finds the whole of them, or what was there before."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.errors import StorageError

__all__ = [
    "fresh_folder",
    "remove_folder",
    "remove_partial",
    "storage_errors",
    "write_json",
    "write_whole",
]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one step, and have it on the disk before returning."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _removed_unless_renamed(path) as partial:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, in one step."""
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def fresh_folder(final: Path) -> Iterator[Path]:
    """Give an empty folder to write into, which takes the final name when the block has ended well.

    A folder that has the name already is replaced. Where the block fails, nothing is left.
    """
    with storage_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=final.parent, prefix=".partial-", ignore_cleanup_errors=True
        ) as scratch:
            written, replaced = Path(scratch, final.name), Path(scratch, "replaced")
            written.mkdir()
            yield written
            for file in written.rglob("*"):
                if file.is_file():
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            if final.exists():
                final.replace(replaced)
            written.replace(final)
        _sync_folder(final.parent)


@contextlib.contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Report what the disk refuses in one line, with its remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        place = str(error.filename or where)
        remedy = "Free some space, or name a folder that can be written to"
        raise StorageError(place, f"cannot be written: {reason}", remedy=remedy) from error


@contextlib.contextmanager
def _removed_unless_renamed(path: Path) -> Iterator[Path]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # A rename is on the disk when its folder is.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # somebody has removed it since, and what was written with it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step for whoever looks: under its name there is the whole of it, or nothing."""
    doomed = folder.with_name(f".partial-{folder.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(doomed)
        shutil.rmtree(doomed)


def remove_partial(folder: Path) -> None:
    """Remove what somebody who was killed had begun to write, or to remove, in a folder."""
    with storage_errors(folder):
        for each in folder.glob(".*"):
            if each.name.startswith(".partial-"):
                shutil.rmtree(each)
            elif each.suffix == ".partial":
                each.unlink()
