"""Open a data set by name: from disk if possible, else from the network, and a substitute only on request."""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfdist._utils.check_and_expand_paths import (
    default_cache_dir,
    exists,
    is_folder,
    local_path,
    path_or_address,
)
from tfdist.datasets import synthetic_digits, synthetic_shapes
from tfdist.datasets.disk_cache import Batches, Contents, Prepared, find_prepared, prepare, size_text
from tfdist.datasets.from_idx import idx_files
from tfdist.errors import ConfigError, DataError, Unavailable, did_you_mean, shown

_DRAWN: dict[str, tuple[ModuleType, tuple[int, int]]] = {
    "digits": (synthetic_digits, (60_000, 10_000)),  # MNIST's counts
    "shapes": (synthetic_shapes, (50_000, 10_000)),  # CIFAR-10's counts
}

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Data(Prepared):
    """An image-classification data set, which is prepared; pixels are 0 to 255, labels start at 0.

    Attributes:
        name: Its name.
        substitute_for: The name of the data set that was not available, if this one takes its place.
    """

    name: str
    substitute_for: str | None

    @property
    def described(self) -> str:
        """Return name, fingerprint and what is replaced, for a message about tasks with different data."""
        replaced = f" in place of '{self.substitute_for}'" if self.substitute_for else ""
        return f"'{self.name}' {self.fingerprint}{replaced}"

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

        split = self.split("train")
        return train_batches(split, batch, shard=shard, seed=seed, augment=augment, skip_steps=skip_steps)

    def test(self, batch: int, *, shard: tuple[int, int] = (0, 1)) -> Any:
        """Return a tf.data.Dataset of one shard's test batches, in order.

        All shards together read each example once. The last batch may be smaller, and one shard may have one
        batch more than another.
        """
        from tfdist.datasets.pipeline import test_batches

        return test_batches(self.split("test"), batch, shard=shard)


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
    return DataRequest(name, data_dir, cache_dir, if_unavailable, image_size, examples, seed).open()


@dataclass(frozen=True)
class _Source:
    """A source on this machine: the name of its data, what identifies their contents, and their reader."""

    name: str
    identity: list[Any]
    read: Callable[[], Contents]


@dataclass(frozen=True)
class DataRequest:
    """A data set as the arguments of `open_data` describe it."""

    name: str
    data_dir: str | os.PathLike[str] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    if_unavailable: str = "fail"
    image_size: tuple[int, int] | None = None
    examples: tuple[int, int] | None = None
    seed: int = 0

    def open(self, *, warns: bool = True) -> Data:
        """Open the data set; see `open_data`. With `warns`, log why a substitute is used."""
        if self.seed < 0:
            raise ConfigError("seed", expected="a whole number from 0", received=str(self.seed))
        if self.if_unavailable not in ("fail", *_DRAWN):
            remedy = did_you_mean(self.if_unavailable, ("fail", *_DRAWN))
            raise ConfigError("if_unavailable", f"there is no '{self.if_unavailable}'", remedy=remedy)
        if not self.name.strip("."):
            remedy = "Write a name, such as mnist, or a path with a slash"
            raise ConfigError("data set", f"has no name, but {shown(self.name)}", remedy=remedy)
        if self.name in _DRAWN:
            if self.image_size is not None:
                raise ConfigError("image_size", f"cannot be chosen for {self.name}", remedy="Leave it out")
            return self._data(_draw(self.name, self.examples, self.seed, self._cache))
        if self.examples is not None:
            problem = f"can be chosen only for {' and '.join(_DRAWN)}"
            raise ConfigError("examples", problem, remedy="Leave it out")
        try:
            source = self._source or self._fetched_source()
            return self._data(prepare(source.name, source.identity, source.read, self._cache))
        except Unavailable as error:
            drawn = self.if_unavailable
            if drawn == "fail":
                raise
            if warns:
                problem = f"{error.where}: {error.problem}"
                _log.warning("%s; '%s', which tfdist draws, takes its place (if_unavailable)", problem, drawn)
            prepared = _draw(drawn, None, self.seed, self._cache, self.image_size)
            return Data(**vars(prepared), name=drawn, substitute_for=self.name)

    def _data(self, prepared: Prepared) -> Data:
        return Data(**vars(prepared), name=self.name, substitute_for=None)

    @property
    def needs_tensorflow(self) -> bool:
        """Return whether `open` loads TensorFlow, which it does only to read a source.

        Raises:
            DataError: The data are missing.
        """
        if self.name in _DRAWN:
            return False
        source = self._source
        return source is None or find_prepared(source.name, source.identity, self._cache) is None

    @property
    def _cache(self) -> Path:
        if self.cache_dir is None:
            return default_cache_dir()
        return local_path(os.fspath(self.cache_dir), "cache_dir")

    @functools.cached_property
    def _source(self) -> _Source | None:
        """Return the source of the data; None in an object store, and for what is not on this machine yet."""
        if isinstance(path_or_address(self.name, "data set"), str):
            return None
        if (path := _path_of(self.name)) is not None:
            if not exists(path):
                remedy = "Correct the path; a data set of tensorflow-datasets has no slash before its name"
                raise DataError(str(path), "does not exist, or may not be read", remedy=remedy)
            return self._of_path(path)
        folder, place = self._tfds_places
        if idx_files(place):
            return self._of_path(place)
        if not exists(place) and is_folder(self.name):
            path = _resolved(Path(self.name))
            _log.info("data set '%s': the folder %s", self.name, path)
            return self._of_path(path)
        return self._of_tfds(folder, place) if exists(place) else None

    def _fetched_source(self) -> _Source:
        """Return the source of data that need a network: their address is read, or they are downloaded."""
        address = path_or_address(self.name, "data set")
        if isinstance(address, str):
            from tfdist.datasets.from_object_store import copy_to_cache, list_address

            listing = list_address(address)

            def read() -> Contents:
                return _read_path(copy_to_cache(address, listing, self._cache), self.image_size)

            return _Source(Path(address).stem, ["address", address, self.image_size, listing], read)
        from tfdist.datasets.from_tfds import fetch_tfds

        folder, place = self._tfds_places
        fetch_tfds(self.name, folder)
        return self._of_tfds(folder, place)

    @property
    def _tfds_places(self) -> tuple[Path, Path]:
        """Return the folder of tensorflow-datasets, and the one of this data set in it."""
        chosen = os.fspath(self.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
        folder = _resolved(local_path(chosen, "data_dir"))
        return folder, folder / self.name.partition(":")[0].partition("/")[0]

    def _of_path(self, path: Path) -> _Source:
        identity = ["path", str(path), self.image_size, _stamp(path)]
        return _Source(path.stem, identity, lambda: _read_path(path, self.image_size))

    def _of_tfds(self, folder: Path, place: Path) -> _Source:
        def read() -> Contents:
            from tfdist.datasets.from_tfds import read_tfds

            return read_tfds(self.name, folder, self.image_size)

        return _Source(self.name, ["tfds", self.name, str(place), self.image_size, _stamp(place)], read)


def _draw(
    name: str,
    examples: tuple[int, int] | None,
    seed: int,
    cache: Path,
    image_size: tuple[int, int] | None = None,
) -> Prepared:
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
    if image_size is None or tuple(image_size) == drawing.IMAGE_SHAPE[:2]:
        return prepare(name, ["drawn", contents.identity], lambda: contents, cache)
    resized = dataclasses.replace(
        contents, identity=f"{contents.identity}, resized to {size_text(image_size)}"
    )

    def read() -> Contents:
        from tfdist.datasets.from_files import resize_contents

        return resize_contents(resized, image_size)

    return prepare(name, ["drawn", resized.identity], read, cache)


def _path_of(name: str) -> Path | None:
    """Return the path that a name is; None if it is a name without a slash."""
    is_path = name.startswith(("/", "./", "../", "~")) or name.endswith(".npz") or "://" in name
    return _resolved(Path(path_or_address(name, "data set"))) if is_path else None


def _resolved(path: Path) -> Path:
    try:
        return path.expanduser().resolve()
    except (RuntimeError, OSError) as error:  # a loop of links, or ~ of a user who does not exist
        raise DataError(str(path), f"cannot be found: {error}") from None


def _read_path(path: Path, image_size: tuple[int, int] | None) -> Contents:
    # Loads TensorFlow, which a prepared data set does not need.
    from tfdist.datasets.from_files import read_path

    return read_path(path, image_size)


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files under a path, which show a change."""
    try:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        return [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise DataError(str(error.filename or path), f"cannot be read: {error.strerror}") from None
