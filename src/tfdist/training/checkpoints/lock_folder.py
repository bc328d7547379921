"""Keep two runs from writing their checkpoints to one folder, where each would remove those of the other."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tfdist._utils.write_files import storage_errors
from tfdist.errors import ConfigError

_SECONDS_TO_END = 20.0  # of a run that was killed a moment ago
_SECONDS_BETWEEN_TRIES = 0.2
_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder of a run's checkpoints while the block runs; make the folder if there is none.

    The kernel unlocks it when the process ends, however that happens. It is a lock of this machine: file
    systems between machines, such as NFS, lock no folders, and two runs there do not notice each other.

    Raises:
        ConfigError: Another run has it.
        StorageError: The folder cannot be made.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks of folders
            _lock(descriptor, folder)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    give_up, said = time.monotonic() + _SECONDS_TO_END, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                problem = "another run is writing its checkpoints there"
                raise ConfigError(str(folder), problem, remedy="End it, or choose another folder") from None
        if not said:
            _log.info("%s: waiting for the end of another run that writes its checkpoints there", folder)
            said = True
        time.sleep(_SECONDS_BETWEEN_TRIES)
