"""Read all arrays of an .npz file, whatever the file really is."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tfdist._utils.read_untrusted_files import opened_regular
from tfdist.errors import DataError

# Of damaged, encrypted and oversized files, and of those that have another format.
_ERRORS = (ValueError, OSError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays in an .npz file by name.

    Raises:
        DataError: The file is none, is damaged, or would not fit into memory.
    """
    try:
        # np.load itself would leave a file open whose format it does not know.
        with opened_regular(path) as raw:
            with zipfile.ZipFile(raw) as members:  # of an .npy file, np.load would return an array
                size = sum(member.file_size for member in members.infolist())
            check_fits_memory(path, size)
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
    except DataError:
        raise
    except _ERRORS as error:
        raise DataError(str(path), f"cannot be read: {error or type(error).__name__}") from None


def check_fits_memory(path: Path, size: int) -> None:
    """Raise DataError if a file claims more bytes than half of this machine's memory has."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if size > most:
        expected = f"at most {most / 1e9:.1f} GB uncompressed, half of this machine's memory"
        remedy = "Write the images as TFRecord files or as a folder, which are read in parts"
        raise DataError(str(path), expected=expected, received=f"{size / 1e9:.1f} GB", remedy=remedy)
