"""Copy an exported model from an object store to the cache of this machine."""

from pathlib import Path

from tfdist._utils.check_and_expand_paths import default_cache_dir
from tfdist._utils.object_store import check_store, list_names, read_file
from tfdist.datasets.from_object_store import copy_to_cache, list_address
from tfdist.errors import ConfigError


def fetch_export(address: str) -> Path:
    """Return the path of a copy of the exported model at an address.

    Args:
        address: That of a run's folder or its `export`, which mean the newest model; of the folder of one
            export; or of a `.keras` or `.tflite` file in one.

    Raises:
        ConfigError: There is no exported model at the address.
        StorageError: The store is unreachable, or denies access.
    """
    check_store(address)
    if address.endswith((".keras", ".tflite")):
        folder, _, name = address.rpartition("/")
        return _copied(folder) / name
    for folder in (address, _newest(address), _newest(f"{address}/export")):
        if "saved_model.pb" in list_names(folder):
            return _copied(folder)
    raise ConfigError(address, "has no exported model", remedy="A completed run has one in RUN/export")


def _newest(address: str) -> str:
    """Return the address of the newest export in a folder of exports, which may not exist."""
    name = (read_file(f"{address}/latest") or b"latest").decode("utf-8", "replace").strip()
    return f"{address}/{Path(name).name}"  # its last part, so that it does not lead out of the folder


def _copied(folder: str) -> Path:
    return copy_to_cache(folder, list_address(folder), default_cache_dir())
