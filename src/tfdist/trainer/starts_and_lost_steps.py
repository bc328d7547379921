"""Record when a run has started and how far it came, so that a resumed run can count the steps it lost."""

import contextlib
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from tfdist._utils.read_untrusted_files import read_json_file
from tfdist._utils.write_files import storage_errors, write_json
from tfdist.trainer.remote_run_folder import RemoteRunFolder
from tfdist.trainer.run_folder import RunFolder

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Start:
    """One start of a run.

    Attributes:
        at_step: The step of the checkpoint that the run started from, or 0.
        lost: How many steps after that checkpoint had been done before, and were repeated.
    """

    at_step: int
    lost: int


class RunHistory:
    """The starts of a run; only the chief begins one, and so knows and writes them.

    Attributes:
        starts: All starts of the run, the last of which is this process's.
    """

    def __init__(self, folder: RunFolder, remote: RemoteRunFolder | None) -> None:
        self._folder, self._remote = folder, remote
        self._reached: int | None = None  # the descriptor of the file with the number of steps done
        self.starts: tuple[Start, ...] = ()

    def begin(self, step: int) -> None:
        """Add the start of this process, unless that has been done."""
        if self.starts:
            return
        with storage_errors(self._folder.checkpoints):
            self._folder.checkpoints.mkdir(parents=True, exist_ok=True)
            self._reached = os.open(self._folder.reached_file, os.O_RDWR | os.O_CREAT, 0o666)
            before = os.pread(self._reached, 64, 0).strip()
        lost = max(0, int(before) - step) if before.isdigit() else 0
        self.starts = (*_read_history(self._folder.history_file), Start(step, lost))
        write_json(self._folder.history_file, [asdict(start) for start in self.starts])
        self.write_steps_done(step)
        if self._remote is not None:
            self._remote.put_history()

    def write_steps_done(self, step: int) -> None:
        """Write the number of steps done to a file."""
        if self._reached is None:
            return
        # No fsync: the file survives the end of the process, which is the usual fault. It is rewritten in
        # place, which works on a full disk too. The count is only for the report, so no error is raised.
        with contextlib.suppress(OSError):
            os.pwrite(self._reached, b"%20d\n" % step, 0)
        if self._remote is not None:
            self._remote.put_count()


def _read_history(file: Path) -> list[Start]:
    """Return the earlier starts of a run; they are only for the report, so a damaged file ends no run."""
    try:
        return msgspec.convert(read_json_file(file), list[Start])
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        _log.warning("%s: cannot be read (%s); the report counts from this start on", file, error)
        return []
