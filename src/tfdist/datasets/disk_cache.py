"""Store a data set decoded on disk, so that every task of every strategy reads the same bytes.

A prepared data set is a folder of four plain arrays and a description:

    <cache_dir>/mnist-3f2a9c61b0d4/
        train.images  uint8, [examples, height, width, channels]      test.images
        train.labels  int32, [examples]                               test.labels
        about.json    written last

The folder's name depends only on its contents, so the path is the same on machines that prepare it
separately. A parameter-server worker needs this: it opens the path in the coordinator's data-set function.
The link `by-request/<name>-<key>` leads from a request to the contents.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist._utils.read_untrusted_files import read_json_file
from tfdist._utils.write_files import set_link, storage_errors, write_whole
from tfdist.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int32]
Batches = Iterable[tuple[Images, Labels]]

_FORMAT = 2  # of what is read from a source, and in which order
_AT_ONCE = 1000
_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Contents:
    """The contents of a source: batches of pixels and labels, and the classes.

    If `identity` is set, the fingerprint depends on it instead of on the pixels.
    """

    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    train: Batches
    test: Batches
    identity: str = ""

    @classmethod
    def of_arrays(
        cls,
        images: Mapping[str, Any],
        labels: Mapping[str, Any],
        classes: tuple[str, ...],
        places: Mapping[tuple[str, str], object],
    ) -> "Contents":
        """Return the contents of arrays by split; numbers are the classes if none are named.

        Raises:
            DataError: The arrays do not fit each other; its place is that of a split's `images` or `labels`.
        """
        size = images["train"].shape[1:]
        highest = {split: int(values.max()) for split, values in labels.items()}
        classes = classes or tuple(map(str, range(max(highest.values()) + 1)))
        check_classes(classes, str(places["train", "labels"]))
        for split, pixels in images.items():
            where, count = str(places[split, "labels"]), len(labels[split])
            if count != len(pixels):
                raise DataError(where, expected=f"{len(pixels)} labels", received=str(count))
            if pixels.shape[1:] != size:
                expected, received = size_text(size), size_text(pixels.shape[1:])
                place = str(places[split, "images"])
                raise DataError(place, expected=f"images of {expected}", received=received)
            if highest[split] >= len(classes):
                expected = f"labels below {len(classes)}, the number of classes"
                raise DataError(where, expected=expected, received=str(highest[split]))
        train, test = (_slices(images[split], labels[split]) for split in ("train", "test"))
        return cls(size, classes, train, test)


def check_classes(classes: tuple[str, ...], where: str) -> None:
    """Raise DataError for one class, of which a model has nothing to learn."""
    if len(classes) < 2:
        raise DataError(where, expected="labels of at least two classes", received=str(len(classes)))


def size_text(shape: Iterable[int]) -> str:
    """Return the shape of an image or an array as a user reads it: 28 x 28 x 1."""
    return " x ".join(map(str, shape))


def _slices(images: Any, labels: Any) -> Batches:
    for start in range(0, len(images), _AT_ONCE):
        yield images[start : start + _AT_ONCE], labels[start : start + _AT_ONCE]


@dataclass(frozen=True)
class Split:
    """The two files of a split, and the number of their examples."""

    images: str
    labels: str
    examples: int
    image_shape: tuple[int, int, int]

    def arrays(self) -> tuple[Images, Labels]:
        """Map the files into memory as arrays."""
        shape = (self.examples, *self.image_shape)
        return np.memmap(self.images, np.uint8, "r", shape=shape), np.memmap(self.labels, np.int32, "r")


@dataclass(frozen=True)
class Prepared:
    """A prepared data set.

    Attributes:
        image_shape: Height, width and channels.
        classes: The classes' names, in the order of the labels.
        train_examples: The number of training examples.
        test_examples: The number of test examples.
        fingerprint: Twelve hexadecimal digits that identify the contents.
        folder: Where the files are.
    """

    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    train_examples: int
    test_examples: int
    fingerprint: str
    folder: Path

    def split(self, name: str) -> Split:
        """Return the files of `train` or `test`."""
        examples = self.train_examples if name == "train" else self.test_examples
        images, labels = _files(self.folder, name)
        return Split(str(images), str(labels), examples, self.image_shape)


def find_prepared(name: str, request: object, cache_dir: Path) -> Prepared | None:
    """Return the data set that `prepare` has prepared for a request; None if it is not there."""
    return _open(_link(name, request, cache_dir))


def _link(name: str, request: object, cache_dir: Path) -> Path:
    key = hashlib.sha256(json.dumps([_FORMAT, name, request], sort_keys=True).encode()).hexdigest()[:12]
    return cache_dir / "by-request" / f"{_safe(name)}-{key}"


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.")[-40:]


def prepare(name: str, request: object, read: Callable[[], Contents], cache_dir: Path) -> Prepared:
    """Return the prepared data set for a request; the first call prepares it.

    One process at a time prepares; the others wait, and then use its result. The partial data set of a killed
    process is never used; the next process removes it.

    Args:
        name: the first part of the folder's name.
        request: plain values that identify the data set.
        read: reads the source; called under the lock, at most once.
        cache_dir: the folder of prepared data sets.
    """
    if (prepared := find_prepared(name, request, cache_dir)) is not None:
        return prepared
    link, safe = _link(name, request, cache_dir), _safe(name)
    with storage_errors(cache_dir, remedy="Name another folder with cache_dir or TFDIST_CACHE_DIR"):
        link.parent.mkdir(parents=True, exist_ok=True)
        with lock(link.with_name(f".{link.name}.lock"), f"{name} is being prepared in {cache_dir}"):
            if (prepared := _open(link)) is not None:
                return prepared
            partial = cache_dir / f".{link.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # a killed process may have left it
            try:
                folder = _write(partial, read(), cache_dir, safe)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            set_link(link, Path("..") / folder.name)
            prepared = _open(link)
    if prepared is None:
        raise DataError(
            str(link),
            "was removed or changed during writing",
            remedy="Check that no other program cleans the folder",
        )
    size = sum(file.stat().st_size for file in prepared.folder.iterdir()) / 1e6
    _log.info("%s: prepared once in %s (%.0f MB, decoded)", name, prepared.folder, size)
    return prepared


@contextlib.contextmanager
def lock(path: Path, meanwhile: str) -> Iterator[None]:
    """Lock a file during the block; the system releases the lock also if the process is killed.

    Args:
        path: the lock file, which is created if it is missing.
        meanwhile: the log line's beginning if another process has the lock.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("%s by another process; waiting for it", meanwhile)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open(folder: Path) -> Prepared | None:
    """Return the data set in a folder, or None if it is missing or incomplete."""
    about = folder / "about.json"
    try:
        written = read_json_file(about)
        height, width, channels = written.pop("image_shape")
        classes = tuple(written.pop("classes"))
        sizes = dict(written.pop("sizes"))
        prepared = Prepared(
            image_shape=(height, width, channels), classes=classes, folder=folder.resolve(), **written
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s: unreadable (%s); preparing the data set again", about, error)
        return None
    for name, size in sizes.items():
        file = prepared.folder / name
        actual = file.stat().st_size if file.exists() else 0
        if actual != size:
            _log.warning("%s: expected %d bytes, found %d; preparing it again", file, size, actual)
            return None
    return prepared


def _write(partial: Path, contents: Contents, cache_dir: Path, name: str) -> Path:
    partial.mkdir()
    digest = hashlib.sha256(json.dumps([contents.image_shape, contents.classes]).encode())
    counts = {}
    for split, batches in (("train", contents.train), ("test", contents.test)):
        counts[split] = _write_split(partial, split, batches, digest.update)
        digest.update(f"{split} {counts[split]}".encode())  # other splits of the same examples are other data
    if contents.identity:
        digest = hashlib.sha256(contents.identity.encode())
    fingerprint = digest.hexdigest()[:12]
    folder = cache_dir / f"{name}-{fingerprint}"
    sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
    prepared = Prepared(
        contents.image_shape, contents.classes, counts["train"], counts["test"], fingerprint, folder
    )
    about = {**asdict(prepared), "sizes": sizes}
    del about["folder"]
    write_whole(partial / "about.json", json.dumps(about, indent=1).encode())
    if _open(folder) is None:  # otherwise another request had the same contents
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return folder


def _write_split(folder: Path, split: str, batches: Batches, update: Callable[[bytes], None]) -> int:
    examples = 0
    images_file, labels_file = _files(folder, split)
    with images_file.open("wb") as images_to, labels_file.open("wb") as labels_to:
        for images, labels in batches:
            for array, file in (
                (np.ascontiguousarray(images, np.uint8), images_to),
                (np.ascontiguousarray(labels, np.dtype("<i4")), labels_to),
            ):
                file.write(array.tobytes())
                update(array.tobytes())
            examples += len(images)
        for file in (images_to, labels_to):
            file.flush()
            os.fsync(file.fileno())
    return examples


def _files(folder: Path, split: str) -> tuple[Path, Path]:
    return folder / f"{split}.images", folder / f"{split}.labels"
