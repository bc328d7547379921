"""Write the checkpoints of a run one after the other: while training waits, or in the background."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.errors import TfdistError
from tfdist.launcher.progress_for_engines import write_saved_step
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import CheckpointSaved
from tfdist.training.checkpoints import checkpoint_files

_log = logging.getLogger("tfdist")


class CheckpointWriter:
    """Write checkpoints in order; at the end of the block all of them are on the disk.

    In the background, one checkpoint is written at a time: the next one waits for it, so that memory holds no
    more than two copies of the variables.
    """

    def __init__(self, folder: Path, *, keep: int, background: bool) -> None:
        """Write to a folder, in which the newest `keep` stay; `background` is not to wait for the disk."""
        self._folder, self._keep = folder, keep
        self._thread = ThreadPoolExecutor(1, "tfdist-checkpoint") if background else None
        self._writing: Future[None] | None = None

    def save(
        self,
        step: int,
        values: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        also: Sequence[int] = (),
        files: Mapping[str, bytes] | None = None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Write a checkpoint as `checkpoint.save` does, record that, remove old ones, and call `then`.

        The checkpoints of the steps in `also` stay besides the newest ones.

        Raises:
            StorageError: See `write`.
        """
        began, kept = time.monotonic(), checkpoint_files.snapshot(values)

        def write() -> None:
            begun = time.monotonic()
            checkpoint_files.save(self._folder, step, kept, facts, files)
            ended = time.monotonic()
            waited = (ended if self._thread is None else begun) - began
            record(CheckpointSaved(step=step, seconds=ended - began, waited=waited))
            write_saved_step(step)
            checkpoint_files.prune(self._folder, self._keep, [*also, step])  # newer ones may be damaged
            then()

        self.write(write)

    def write(self, write: Callable[[], None]) -> None:
        """Call the function that writes a checkpoint, after the one before.

        Raises:
            StorageError: The disk is full or refuses; in the background, for the checkpoint before this one.
        """
        self.wait()
        if self._thread is None:
            write()
        else:
            self._writing = self._thread.submit(write)

    @doing(Activity("saving a checkpoint"))
    def wait(self) -> None:
        """Wait until all checkpoints are on the disk.

        Raises:
            StorageError: The disk is full or refuses.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except TfdistError as second:
            if error is None:
                raise
            _log.warning("%s", second)  # the first error says why the run ends
        finally:
            if self._thread is not None:
                self._thread.shutdown()
