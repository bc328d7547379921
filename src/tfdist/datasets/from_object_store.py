"""Copy a data set from an object store to the cache of this machine, from which it is read like any other."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from tfdist._utils.object_store import check_store, download, list_files
from tfdist._utils.write_files import fresh_folder, storage_errors
from tfdist.datasets.disk_cache import lock
from tfdist.errors import DataError, StorageError, Unavailable

Listing = list[tuple[str, int, int]]
_log = logging.getLogger("tfdist")


def list_address(address: str) -> Listing:
    """Return names, sizes and times of the files at an address, which show a change.

    Raises:
        DataError: There are none, or the store denies access.
        Unavailable: The store is unreachable.
        ConfigError: TensorFlow has no file system for the address.
    """
    try:
        check_store(address)
    except StorageError as error:
        raise Unavailable(error.where, error.problem, remedy=error.remedy) from error
    with _data_errors():
        return [(name, file.size, file.mtime_ns) for name, file in list_files(address).items()]


def copy_to_cache(address: str, listing: Listing, cache: Path) -> Path:
    """Return the path of a copy of the files at an address; the first call for this listing makes it."""
    key = hashlib.sha256(json.dumps([address, listing]).encode()).hexdigest()[:12]
    folder = cache / "from-address" / key
    name = address.rpartition("/")[2]  # from which readers know the kind of a file
    with _data_errors():
        with storage_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(folder.with_name(f".{key}.lock"), f"{address} is being copied to {folder}"):
            if not folder.exists():
                size = sum(size for _, size, _ in listing)
                _log.info("%s: copying %d files (%.0f MB) to %s", address, len(listing), size / 1e6, folder)
                with fresh_folder(folder) as partial:
                    download(address, partial / name, [relative for relative, _, _ in listing])
    return folder / name


@contextlib.contextmanager
def _data_errors() -> Iterator[None]:
    """Raise DataError for what is wrong with an object store."""
    try:
        yield
    except StorageError as error:
        raise DataError(error.where, error.problem, remedy=error.remedy) from error
