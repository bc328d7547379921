"""Make a folder for a run that nobody else has."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import ConfigError


def stamped_run_folder(name: str) -> Path:
    """Return runs/NAME-DATE-TIME of this second, which another run may have taken."""
    return Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def new_run_folder(name: str) -> Path:
    """Make a folder for a run that nobody else has, and return it: runs/NAME-DATE-TIME, or with -2."""
    stem, more = stamped_run_folder(name), 1
    while True:
        folder = stem if more == 1 else stem.with_name(f"{stem.name}-{more}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            more += 1  # another run began in this second
        except OSError as error:
            problem, remedy = f"{folder} cannot be made: {error.strerror}", "Choose one that you may write to"
            raise ConfigError("run_dir", problem, remedy=remedy) from None
        else:
            return folder


@contextlib.contextmanager
def claimed_run_folder(name: str) -> Iterator[Path]:
    """Yield a folder that `new_run_folder` makes; remove it if the block leaves it empty."""
    folder = new_run_folder(name)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # it has files, or somebody has removed it
            folder.rmdir()
