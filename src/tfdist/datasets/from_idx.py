"""Read idx files, in which MNIST and Fashion-MNIST come: `train-images-idx3-ubyte.gz` and its like."""

import gzip
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tfdist._utils.check_and_expand_paths import is_folder
from tfdist._utils.read_untrusted_files import opened_regular, read_text_file
from tfdist.datasets.disk_cache import Contents, size_text
from tfdist.datasets.read_npz import check_fits_memory
from tfdist.errors import DataError

Array = NDArray[np.uint8]

# The file names of the original sets; some copies have a dot in place of the hyphen before idx.
_NAME = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
_SPLITS = {"train": "train", "t10k": "test", "test": "test"}
_UNSIGNED_BYTES = 8


def idx_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the idx files in a folder by split, `train` or `test`, and part, `images` or `labels`.

    If a file is there both as it is and compressed, the one as it is counts.
    """
    files: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.iterdir()) if is_folder(folder) else ():
        if (match := _NAME.fullmatch(path.name)) and path.is_file():
            files.setdefault((_SPLITS[match[1]], match[2]), path)
    return files


def read_idx(folder: Path, classes: tuple[str, ...]) -> Contents:
    """Read the four idx files of a data set.

    Args:
        folder: The folder of the files.
        classes: The names of the classes; without them, `labels.txt` beside the files, or the numbers.

    Raises:
        DataError: A file is missing, damaged, or does not fit the others.
    """
    files = idx_files(folder)
    for split in ("train", "test"):
        for part, dimensions in (("images", 3), ("labels", 1)):
            if (split, part) not in files:
                name = f"{'train' if split == 'train' else 't10k'}-{part}-idx{dimensions}-ubyte"
                raise DataError(str(folder), f"has no {name} or {name}.gz", remedy="Add it")
    images = {split: _read(files[split, "images"], 3)[..., None] for split in ("train", "test")}
    labels = {split: _read(files[split, "labels"], 1) for split in ("train", "test")}
    names = folder / "labels.txt"
    return Contents.of_arrays(images, labels, read_labels_file(names) if names.exists() else classes, files)


def read_labels_file(path: Path) -> tuple[str, ...]:
    """Return the names of the classes, one a line.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return tuple(read_text_file(path).splitlines())
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"cannot be read: {error}") from None


def _read(path: Path, dimensions: int) -> Array:
    """Return the array in an idx file of bytes: two zeros, the type, the number of dimensions, the sizes."""
    header = 4 + 4 * dimensions
    start = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    try:
        with opened_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            head = file.read(header)
            if len(head) < header or head[:4] != start:
                expected = f"an idx file of bytes with {dimensions} dimensions, which begins with"
                received = head[:4].hex(" ") or "an empty file"
                raise DataError(str(path), expected=f"{expected} {start.hex(' ')}", received=received)
            shape = struct.unpack(f">{dimensions}I", head[4:])
            check_fits_memory(path, math.prod(shape))
            data = file.read(math.prod(shape) + 1)
    except (EOFError, zlib.error, OSError) as error:  # a bad gzip file is an OSError
        raise DataError(str(path), f"cannot be read: {error}", remedy="Copy or download it again") from None
    if len(data) != math.prod(shape):
        expected = f"{math.prod(shape)} bytes after the header, for {size_text(shape)}"
        received = "more" if len(data) > math.prod(shape) else f"{len(data)}"
        raise DataError(str(path), expected=expected, received=received, remedy="Copy or download it again")
    if not data:
        raise DataError(str(path), "has no examples")
    return np.frombuffer(data, np.uint8).reshape(shape)
