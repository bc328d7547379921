"""Write files and folders atomically: a reader finds all of the new content or all of the old."""

import contextlib
import errno
import functools
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tfdist.errors import ConfigError, StorageError, TaskLost, TfdistError

_STREAM = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/([0-9]{1,9})")  # of this process


def write_whole(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Write a file atomically, and wait until it is on the disk; only its owner may read a private one."""
    opener = functools.partial(os.open, mode=0o600) if is_private else None
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _loss_if_removed(path.parent, path), partial_file(path) as partial:
            with open(partial, "wb", opener=opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        _sync_folder(path.parent)


def write_output(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Write what a user has named for output: into a device, a FIFO or a stream; else as `write_whole`."""
    with storage_errors(path):
        if path.is_dir():
            raise ConfigError("output", expected="a file", received=f"the folder {path}")
        if stream := opened_stream(path):
            with stream:
                stream.write(data)
            return
    write_whole(path, data, is_private=is_private)


def opened_stream(path: Path) -> BinaryIO | None:
    """Open what is written into: a device, a FIFO, or a stream of this process; None for any other path."""
    if match := _STREAM.fullmatch(str(path)):  # its file may be regular, and have output of others
        standard, number = match.groups()
        return os.fdopen(os.dup(int(number or ("stdout", "stderr").index(standard) + 1)), "wb")
    return open(os.open(path, os.O_WRONLY), "wb") if is_stream(path) else None


def is_stream(path: Path) -> bool:
    """Return whether a path is written into as it is: a device, a FIFO, or a stream of this process."""
    if _STREAM.fullmatch(str(path)):
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_json(path: Path, value: Any, *, is_private: bool = False) -> None:
    """Write a value as JSON, atomically."""
    write_whole(path, as_json(value), is_private=is_private)


def without_nan(value: Any) -> Any:
    """Return a value with None for each number that is NaN or infinite, which JSON does not have.

    >>> without_nan({"loss": float("nan"), "counts": [1, float("inf")]})
    {'loss': None, 'counts': [1, None]}
    """
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(value: Any) -> bytes:
    """Return a value as JSON for people."""
    return (json.dumps(value, indent=2) + "\n").encode()


@contextlib.contextmanager
def fresh_path(final: Path) -> Iterator[Path]:
    """Yield a path for a file or a folder, which gets the final name when the block has succeeded.

    It replaces what has the name already. If the block fails, what was written is removed. Cloud Storage FUSE
    may refuse to rename a folder. Then its files are copied, and the last one is the one written last.
    """
    with storage_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=final.parent, prefix=".partial-", ignore_cleanup_errors=True
        ) as scratch:
            written, replaced = Path(scratch, final.name), Path(scratch, "replaced")
            with _loss_if_removed(Path(scratch), final):
                yield written
                for file in (written, *written.rglob("*")):
                    if file.is_file():
                        with file.open("rb") as opened:
                            os.fsync(opened.fileno())
                _rename(written, final, replaced)
        _sync_folder(final.parent)


@contextlib.contextmanager
def fresh_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder, which gets the final name when the block has succeeded: see `fresh_path`."""
    with fresh_path(final) as written:
        written.mkdir()
        yield written


@contextlib.contextmanager
def temporary_folder(prefix: str, *, within: str | None = None) -> Iterator[str]:
    """Yield a new temporary folder, in the usual one or another, which is removed after the block.

    Raises:
        StorageError: No folder for temporary files can be written to.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True)
    except OSError as error:
        remedy = "Free disk space, or set TMPDIR to a folder that you may write to"
        raise StorageError("temporary folder", f"cannot be made: {error.strerror}", remedy=remedy) from None
    with folder as path:
        yield path


@contextlib.contextmanager
def storage_errors(where: Path, remedy: str = "Free disk space, or name a writable folder") -> Iterator[None]:
    """Raise a StorageError of one line for any OSError of the block."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        place = str(error.filename or where)
        raise StorageError(place, f"cannot be written: {reason}", remedy=remedy) from error


@contextlib.contextmanager
def _loss_if_removed(folder: Path, final: Path) -> Iterator[None]:
    """Raise TaskLost if the block fails because somebody has removed the folder it works in."""
    try:
        yield
    except (OSError, TfdistError) as error:
        if folder.exists():
            raise
        problem = "its folder was removed while it was being written"
        raise TaskLost(str(final), problem, remedy="Start the run again") from error


@contextlib.contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write and then to rename to another one; remove it if it is not renamed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def set_link(link: Path, target: str | Path) -> None:
    """Set a link atomically: it always leads to a target, the one before or this one."""
    with partial_file(link) as partial:
        partial.unlink(missing_ok=True)
        partial.symlink_to(target)
        partial.replace(link)


def _rename(written: Path, final: Path, replaced: Path) -> None:
    """Rename a file or folder to its final name; move what has the name already."""
    try:
        if final.exists() and (final.is_dir() or written.is_dir()):  # a file replaces a file by itself
            final.replace(replaced)
        written.replace(final)
    except OSError as error:
        if error.errno != errno.EMFILE or not written.is_dir():
            raise
        _copy_folder(written, final)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the files of a folder in the order in which they were written, and replace the target."""
    if target.exists():
        shutil.rmtree(target)
    for file in sorted(filter(Path.is_file, source.rglob("*")), key=lambda file: file.stat().st_mtime_ns):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _sync_folder(folder: Path) -> None:
    # A rename is on the disk only after a sync of its folder.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # another process has removed the folder in the meantime
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder, or what else has its name, atomically: a reader finds all of it, or nothing."""
    renamed = folder.with_name(f".partial-{folder.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        try:
            folder.rename(renamed)
        except OSError as error:
            if error.errno != errno.EMFILE:  # Cloud Storage FUSE may refuse to rename a folder
                raise
            renamed = folder
        _remove(renamed)


def remove_partial(folder: Path) -> None:
    """Remove the partial files and folders that killed processes have left in a folder."""
    with storage_errors(folder):
        for path in folder.glob(".*"):
            if path.name.startswith(".partial-"):
                _remove(path)
            elif path.suffix == ".partial" and not path.is_dir():
                path.unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()  # rmtree would wait at a FIFO, and raise for a link
