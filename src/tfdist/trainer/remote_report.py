"""Keep in an object store what the page about a run is made of, and the page."""

from pathlib import Path

from tfdist._utils.files import storage_errors, write_whole
from tfdist._utils.object_store import check_store, download, list_names, read_file, write_file
from tfdist.launcher.run_events import FILE, read_event
from tfdist.trainer.run_folder import RunFolder

__all__ = ["fetch_report", "put_events", "put_page"]

_FILES, _FOLDERS = (FILE, "report.json"), ("report", "timeline")


def put_events(folder: RunFolder, *, is_over: bool = False) -> None:
    """Upload the events of a run, if it has an address, with those of its starts on other machines.

    Args:
        folder: The folders of the run.
        is_over: Whether no task writes events any more: then the file on this machine gets all of them too.

    Raises:
        StorageError: The store is unreachable or denies access.
    """
    path = folder.root / FILE
    address = folder.address_of(path)
    if address is None:
        return
    with storage_errors(path):
        own = path.read_bytes() if path.exists() else b""
    events = _merged(read_file(address) or b"", own)
    write_file(address, events)
    if is_over and events != own:
        write_whole(path, events)


def _merged(stored: bytes, own: bytes) -> bytes:
    """Return the events of both files in the order of their times, each once."""
    if own.startswith(stored):  # all starts were on this machine
        return own
    lines = dict.fromkeys([*stored.splitlines(), *own.splitlines()])
    times = {line: event.time for line in lines if (event := read_event(line)) is not None}
    return b"".join(line + b"\n" for line in sorted(times, key=lambda line: times[line]))


def fetch_report(address: str, folder: Path) -> None:
    """Copy what the page about a run is made of from an address to a folder.

    Raises:
        ConfigError: TensorFlow has no file system for the address.
        StorageError: The store is unreachable or denies access.
    """
    check_store(address)
    for name in _FILES:
        if (content := read_file(f"{address}/{name}")) is not None:
            write_whole(folder / name, content)
    for name in _FOLDERS:
        download(f"{address}/{name}", folder / name, list_names(f"{address}/{name}"))


def put_page(page: Path, address: str) -> str:
    """Upload a page about the run at an address, and return its address."""
    there = f"{address}/{page.name}"
    with storage_errors(page):
        content = page.read_bytes()
    write_file(there, content)
    return there
