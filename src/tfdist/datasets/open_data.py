"""Open a data set by name: from disk if possible, else from the network, and a substitute only on request."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfdist._utils.files import default_cache_dir, local_path, path_or_address
from tfdist.datasets import synthetic_digits, synthetic_shapes
from tfdist.datasets.cache import Batches, Contents, Prepared, prepare
from tfdist.datasets.from_idx import idx_files
from tfdist.errors import ConfigError, DataError, Unavailable, did_you_mean

__all__ = ["Data", "open_data"]

_DRAWN: dict[str, tuple[ModuleType, tuple[int, int]]] = {
    "digits": (synthetic_digits, (60_000, 10_000)),  # MNIST's counts
    "shapes": (synthetic_shapes, (50_000, 10_000)),  # CIFAR-10's counts
}

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Data:
    """A prepared image-classification data set; pixels are 0 to 255, labels start at 0."""

    name: str
    substitute_for: str | None
    prepared: Prepared

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return height, width and channels."""
        return self.prepared.image_shape

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the classes' names, in the order of the labels."""
        return self.prepared.classes

    @property
    def train_examples(self) -> int:
        """Return the number of training examples."""
        return self.prepared.train_examples

    @property
    def test_examples(self) -> int:
        """Return the number of test examples."""
        return self.prepared.test_examples

    @property
    def fingerprint(self) -> str:
        """Return twelve hexadecimal digits that identify the contents of the data."""
        return self.prepared.fingerprint

    def train(
        self,
        batch: int,
        *,
        shard: tuple[int, int] = (0, 1),
        seed: int = 0,
        augment: str = "none",
        skip_steps: int = 0,
    ) -> Any:
        """Return an endless tf.data.Dataset of training batches.

        Each epoch has all examples in a new order, and the next epoch follows immediately. At each step, all
        shards together take the next batch × shards examples. Only these arguments determine which.

        Args:
            batch: the number of examples in each batch of this shard.
            shard: (index, count): the index of this part of each global batch, and the number of parts.
            seed: determines order and augmentation.
            augment: none, shift, shift_flip, crop_flip or cifar10_2016.
            skip_steps: the first step; skipping costs no time.
        """
        from tfdist.datasets.pipeline import train_batches

        split = self.prepared.split("train")
        return train_batches(split, batch, shard=shard, seed=seed, augment=augment, skip_steps=skip_steps)

    def test(self, batch: int, *, shard: tuple[int, int] = (0, 1)) -> Any:
        """Return a tf.data.Dataset of one shard's test batches, in order.

        All shards together read each example once. The last batch may be smaller, and one shard may have one
        batch more than another.
        """
        from tfdist.datasets.pipeline import test_batches

        return test_batches(self.prepared.split("test"), batch, shard=shard)


def open_data(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    if_unavailable: str = "fail",
    image_size: tuple[int, int] | None = None,
    examples: tuple[int, int] | None = None,
    seed: int = 0,
) -> Data:
    """Open a data set; the first call on a machine prepares it.

    Args:
        name: `digits` or `shapes`, which tfdist draws; a path to a folder of images by class, a folder of
            TFRecord or idx files or an `.npz` file, or its address in an object store, such as
            `gs://bucket/photos`; or else a name of tensorflow-datasets, such as `mnist` or `cifar10`. A name
            without a slash is a path if tensorflow-datasets has no such data set on disk, and the current
            folder or `data_dir` has a folder of that name.
        data_dir: the folder of tensorflow-datasets; else TFDS_DATA_DIR, else its own default.
        cache_dir: the folder of the decoded data; else TFDIST_CACHE_DIR, else the user's cache folder. On a
            parameter-server cluster of several machines it must be the same path on all of them.
        if_unavailable: `fail`, or `digits` or `shapes` as a substitute for data that are not available.
        image_size: the height and width to resize images to; without it, all must have the same size.
        examples: the numbers of training and test examples to draw; for `digits` and `shapes`.
        seed: determines the drawn examples.

    Raises:
        DataError: the data are missing or malformed.
        ConfigError: an argument is wrong.
    """
    if seed < 0:
        raise ConfigError("seed", expected="a whole number from 0", received=str(seed))
    cache = (
        default_cache_dir()
        if cache_dir is None
        else local_path(os.fspath(cache_dir), "cache_dir").expanduser()
    )
    if if_unavailable not in ("fail", *_DRAWN):
        remedy = did_you_mean(if_unavailable, ("fail", *_DRAWN))
        raise ConfigError("if_unavailable", f"there is no '{if_unavailable}'", remedy=remedy)
    if name in _DRAWN:
        if image_size is not None:
            raise ConfigError("image_size", f"cannot be chosen for {name}", remedy="Leave it out")
        return Data(name, None, _draw(name, examples, seed, cache))
    if examples is not None:
        problem = f"can be chosen only for {' and '.join(_DRAWN)}"
        raise ConfigError("examples", problem, remedy="Leave it out")
    try:
        return Data(name, None, _read(name, data_dir, cache, image_size))
    except Unavailable as error:
        if if_unavailable == "fail":
            raise
        _log.warning(
            "%s; training on the drawn '%s' instead, because of if_unavailable", error, if_unavailable
        )
        return Data(if_unavailable, name, _draw(if_unavailable, None, seed, cache))


def _draw(name: str, examples: tuple[int, int] | None, seed: int, cache: Path) -> Prepared:
    drawing, counts = _DRAWN[name]
    train, test = examples or counts
    if min(train, test) < 1:
        raise ConfigError("examples", expected="two numbers from 1", received=f"{train} and {test}")

    def batches(count: int, split: int) -> Batches:
        for start in range(0, count, drawing.AT_ONCE):
            random = np.random.default_rng((seed, split, start))
            yield drawing.draw(min(drawing.AT_ONCE, count - start), random)

    contents = Contents(
        image_shape=drawing.IMAGE_SHAPE,
        classes=drawing.CLASSES,
        train=batches(train, 0),  # a generator, which draws only when it is read
        test=batches(test, 1),
        # Processors round differently, and a pixel may differ by one; such images count as the same.
        identity=f"{name} {drawing.VERSION}: {train} and {test} from {seed}",
    )
    return prepare(name, ["drawn", contents.identity], lambda: contents, cache)


def _read(
    name: str, data_dir: str | os.PathLike[str] | None, cache: Path, image_size: tuple[int, int] | None
) -> Prepared:
    if isinstance(address := path_or_address(name, "data set"), str):
        return _read_address(address, cache, image_size)
    if (path := _path_of(name)) is not None:
        if not path.exists():
            remedy = "Write the name of a data set of tensorflow-datasets without a slash before it"
            raise DataError(str(path), "does not exist", remedy=remedy)
        return _read_path(path, cache, image_size)
    folder = _tfds_dir(data_dir)
    place = folder / name.partition(":")[0].partition("/")[0]
    if idx_files(place):
        return _read_path(place, cache, image_size)
    if not place.exists():
        if Path(name).is_dir():
            _log.info("data set '%s': the folder %s", name, _resolved(Path(name)))
            return _read_path(_resolved(Path(name)), cache, image_size)
        _fetch(name, folder)
    request = ["tfds", name, str(place), image_size, _stamp(place)]
    return prepare(name, request, lambda: _from_tfds(name, folder, image_size), cache)


def _path_of(name: str) -> Path | None:
    """Return the path that a name is; None if it is a name without a slash."""
    is_path = name.startswith(("/", "./", "../", "~")) or name.endswith(".npz") or "://" in name
    return _resolved(local_path(name, "data set")) if is_path else None


def _resolved(path: Path) -> Path:
    try:
        return path.expanduser().resolve()
    except (RuntimeError, OSError) as error:  # a loop of links, or ~ of a user who does not exist
        raise DataError(str(path), f"cannot be found: {error}") from None


def _read_path(path: Path, cache: Path, image_size: tuple[int, int] | None) -> Prepared:
    request = ["path", str(path), image_size, _stamp(path)]
    return prepare(path.stem, request, lambda: _from_path(path, image_size), cache)


def _read_address(address: str, cache: Path, image_size: tuple[int, int] | None) -> Prepared:
    from tfdist.datasets.from_address import copy_to_cache, list_address

    listing = list_address(address)
    request = ["address", address, image_size, listing]

    def read() -> Contents:
        return _from_path(copy_to_cache(address, listing, cache), image_size)

    return prepare(Path(address).stem, request, read, cache)


# These functions import TensorFlow only to read a source; a prepared data set is found without it.


def _from_path(path: Path, image_size: tuple[int, int] | None) -> Contents:
    from tfdist.datasets.from_files import read_path

    return read_path(path, image_size)


def _from_tfds(name: str, folder: Path, image_size: tuple[int, int] | None) -> Contents:
    from tfdist.datasets.from_tfds import read_tfds

    return read_tfds(name, folder, image_size)


def _fetch(name: str, folder: Path) -> None:
    from tfdist.datasets.from_tfds import fetch_tfds

    fetch_tfds(name, folder)


def _tfds_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of tensorflow-datasets: the argument, TFDS_DATA_DIR, or its own default."""
    chosen = os.fspath(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    return _resolved(local_path(chosen, "data_dir"))


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files under a path, which show a change."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
