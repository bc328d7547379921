"""Keep the folders of a run in an object store, while the run works in copies of them on this machine.

The store decides what a run continues from: a start fetches the newest complete checkpoint there, and removes
what an earlier start has left in the copies. A checkpoint is complete when its about.json is there, which is
written last and removed first. These functions leave a folder without an address alone.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tfdist._utils.object_store import (
    check_store,
    download,
    list_files,
    list_names,
    read_file,
    remove_file,
    remove_tree,
    upload,
    write_file,
)
from tfdist._utils.write_files import fresh_folder, remove_folder, storage_errors, write_whole
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.errors import StorageError
from tfdist.launcher.run_events import FILE, read_event
from tfdist.trainer.run_folder import RunFolder
from tfdist.training.checkpoints.checkpoint_files import (
    ABOUT,
    Checkpoint,
    is_checkpoint,
    list_steps,
    obsolete,
    open_checkpoint,
    steps_in,
)

_MODEL = "saved_model.pb"  # the mark of a complete export
_REPORT_FILES, _REPORT_FOLDERS = (FILE, "report.json"), ("report", "timeline")
_SECONDS_BETWEEN_COUNTS = 10.0
_log = logging.getLogger("tfdist")


def check_address(folder: RunFolder) -> None:
    """Check that the stores of a run's folders are reachable and writable.

    Raises:
        ConfigError: TensorFlow has no file system for an address.
        StorageError: A store is unreachable, or denies access.
    """
    for _, address in folder.copies:
        check_store(address)
        probe = f"{address}/.tfdist-probe"
        write_file(probe, b"")
        remove_file(probe)


def newest_step(address: str) -> int | None:
    """Return the step of the newest checkpoint at an address that is marked as complete, if any."""
    steps = reversed(steps_in(list_names(address)))
    return next((step for step in steps if read_file(f"{address}/{step}/{ABOUT}") is not None), None)


class RemoteRunFolder:
    """The folders of a run that have an address, seen by the one task that writes them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._checkpoints = folder.address_of(folder.checkpoints)
        self._uploaded: dict[Path, tuple[int, int]] = {}  # size and time of each file when it was uploaded
        self._counts = ThreadPoolExecutor(1)
        self._count: Future[None] | None = None
        self._counted_at = 0.0

    def fetch(self) -> None:
        """Make the copies hold what the run continues from, and nothing else of it.

        Raises:
            StorageError: A store is unreachable or denies access, or the disk is full.
        """
        self._remove_results()
        if self._checkpoints is not None:
            self._fetch_history(self._checkpoints)
            self._fetch_newest(self._checkpoints)

    def clear(self) -> None:
        """Remove all copies of an earlier start, and check the addresses."""
        check_address(self._folder)
        self._remove_results()
        if self._checkpoints is not None:
            _remove(self._folder.checkpoints)

    def _remove_results(self) -> None:
        folder = self._folder
        for path in (folder.report_file, folder.root / "report", folder.summaries, folder.export):
            if folder.address_of(path) is not None:
                _remove(path)

    def _fetch_history(self, address: str) -> None:
        """Fetch the starts of the run, and the number of steps it had done."""
        history, reached = self._folder.history_file, self._folder.reached_file
        stored = read_file(f"{address}/{history.name}")
        if stored is not None and history.exists() and history.read_bytes() == stored and reached.exists():
            return  # the last start was on this machine, which knows the number of steps best
        for path, content in ((history, stored), (reached, read_file(f"{address}/{reached.name}"))):
            if content is None:
                _remove(path)
            else:
                write_whole(path, content)

    def _fetch_newest(self, address: str) -> None:
        """Fetch the newest complete checkpoint, and remove all others from the copy."""
        newest = None
        for step in reversed(steps_in(list_names(address))):
            if (reason := self._fetch_checkpoint(address, step)) is None:
                newest = step
                break
            _log.warning("%s/%d: %s; using the checkpoint before it", address, step, reason)
        self._remove_but(newest)

    def fetch_after(self, seen: int) -> None:
        """Fetch the first complete checkpoint after a step, if there is one, and remove the others."""
        if self._checkpoints is None:
            return
        for step in steps_in(list_names(self._checkpoints)):
            if step > seen and self._fetch_checkpoint(self._checkpoints, step) is None:
                self._remove_but(step)
                return

    def _fetch_checkpoint(self, address: str, step: int) -> str | None:
        """Copy a checkpoint to this machine; return what is wrong with it, if it is not complete."""
        source, target = f"{address}/{step}", self._folder.checkpoints / str(step)
        about = read_file(f"{source}/{ABOUT}")
        if about is None:
            return f"{ABOUT} is missing"
        if not _is_same(target, about):
            try:
                with fresh_folder(target) as partial:
                    download(source, partial, list_files(source))
            except StorageError:
                if read_file(f"{source}/{ABOUT}") is not None:
                    raise
                return "was removed meanwhile"
        opened = open_checkpoint(target)
        return None if isinstance(opened, Checkpoint) else opened

    def _remove_but(self, kept: int | None) -> None:
        for step in list_steps(self._folder.checkpoints):
            if step != kept:
                _remove(self._folder.checkpoints / str(step))

    def put_history(self) -> None:
        """Upload the starts of the run, and the number of steps done."""
        if self._checkpoints is not None:
            put_file(self._folder, self._folder.history_file)
            put_file(self._folder, self._folder.reached_file)

    def put_count(self) -> None:
        """Upload the number of steps done, from time to time and in the background."""
        if self._checkpoints is None or (self._count is not None and not self._count.done()):
            return
        if time.monotonic() - self._counted_at > _SECONDS_BETWEEN_COUNTS:
            self._counted_at = time.monotonic()
            self._count = self._counts.submit(self._put_count)

    def _put_count(self) -> None:
        try:
            put_file(self._folder, self._folder.reached_file)
        except StorageError as error:  # the count is only for the report
            _log.warning("%s", error)

    @doing(Activity("uploading a checkpoint"))
    def put_checkpoint(self, step: int, keep: int, also: Sequence[int]) -> None:
        """Upload a checkpoint, and remove old ones as `checkpoint.prune` does; upload curves and events too.

        Args:
            step: The step of the checkpoint.
            keep: How many of the newest checkpoints to keep.
            also: Steps whose checkpoints are kept too.
        """
        self.put_summaries()
        put_events(self._folder)
        if self._checkpoints is None:
            return
        if self._count is not None:
            self._count.result()
        # The count comes first: if the upload of the checkpoint is stopped, these steps are lost.
        put_file(self._folder, self._folder.reached_file)
        folder, address = self._folder.checkpoints / str(step), f"{self._checkpoints}/{step}"
        _put_folder(folder, address, mark=ABOUT)
        names = {
            old: list_names(f"{self._checkpoints}/{old}") for old in steps_in(list_names(self._checkpoints))
        }
        own = [old for old, files in names.items() if files and is_checkpoint(files)]
        for old in obsolete(own, keep, [*also, step]):
            remove_file(f"{self._checkpoints}/{old}/{ABOUT}")
            remove_tree(f"{self._checkpoints}/{old}")

    def put_summaries(self) -> None:
        """Upload the curves that have grown."""
        self._put_changed(self._folder.summaries)

    def put_results(self, step: int) -> None:
        """Upload what a run leaves at its last step: what the page shows, the export, and last the report."""
        folder, export = self._folder, self._folder.export_of(step)
        self.put_summaries()
        self._put_changed(folder.root / "report")
        put_events(folder)
        if (address := folder.address_of(export)) is not None:
            _put_folder(export, address, mark=_MODEL)
            if not folder.has_one_export:
                # A store has no links.
                write_file(f"{folder.address_of(folder.export)}/latest", f"{export.name}\n".encode())
        if folder.address_of(folder.root) is not None:
            put_file(self._folder, folder.report_file)

    def _put_changed(self, folder: Path) -> None:
        """Upload the files of a folder that have changed since their last upload."""
        if (address := self._folder.address_of(folder)) is None:
            return
        states = {}
        for path in filter(Path.is_file, folder.rglob("*")):
            status = path.stat()
            states[path] = (status.st_size, status.st_mtime_ns)
        changed = [path for path, state in states.items() if self._uploaded.get(path) != state]
        if changed:
            upload({path.relative_to(folder).as_posix(): path for path in changed}, address)
            self._uploaded.update(states)


def put_file(folder: RunFolder, path: Path) -> None:
    """Upload a file of a run, if the run has an address.

    Raises:
        StorageError: The store is unreachable or denies access.
    """
    if (address := folder.address_of(path)) is not None:
        _upload_file(path, address)


def _upload_file(path: Path, address: str) -> None:
    with storage_errors(path):
        content = path.read_bytes()
    write_file(address, content)


def _put_folder(folder: Path, address: str, mark: str) -> None:
    """Replace a folder in a store, whose mark is written last and removed first."""
    remove_file(f"{address}/{mark}")
    remove_tree(address)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    last = files.pop(mark)
    upload(files, address)
    upload({mark: last}, address)


def _is_same(folder: Path, about: bytes) -> bool:
    """Return whether a complete checkpoint on this machine is the one with that about.json."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / ABOUT).read_bytes() == about and isinstance(open_checkpoint(folder), Checkpoint)
    return False


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    with storage_errors(path):
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)


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
    events = _merged_events(read_file(address) or b"", own)
    write_file(address, events)
    if is_over and events != own:
        write_whole(path, events)


def _merged_events(stored: bytes, own: bytes) -> bytes:
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
    for name in _REPORT_FILES:
        if (content := read_file(f"{address}/{name}")) is not None:
            write_whole(folder / name, content)
    for name in _REPORT_FOLDERS:
        download(f"{address}/{name}", folder / name, list_names(f"{address}/{name}"))


def put_page(page: Path, address: str) -> str:
    """Upload a page about the run at an address, and return its address."""
    there = f"{address}/{page.name}"
    _upload_file(page, there)
    return there
