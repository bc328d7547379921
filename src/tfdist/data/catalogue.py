"""Open a data set by name: look first, ask the network last, and put no other in its place unasked."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.data.digits import draw_digits
from tfdist.data.network import Unavailable
from tfdist.data.shapes import draw_shapes
from tfdist.data.store import Contents, Prepared, default_cache_dir, prepare
from tfdist.errors import ConfigError, DataError, did_you_mean

__all__ = ["Data", "open_data"]

_DRAWN: dict[str, tuple[Callable[[int, int, int], Contents], tuple[int, int]]] = {
    "digits": (draw_digits, (60_000, 10_000)),  # MNIST's counts
    "shapes": (draw_shapes, (50_000, 10_000)),  # CIFAR-10's counts
}

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Data:
    """Hold a prepared image-classification data set; pixels are 0 to 255, labels count from 0."""

    name: str
    substitute_for: str | None
    prepared: Prepared

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Give height, width and channels."""
        return self.prepared.image_shape

    @property
    def classes(self) -> tuple[str, ...]:
        """Give the classes' names, in the order of the labels."""
        return self.prepared.classes

    @property
    def train_examples(self) -> int:
        """Count the training examples."""
        return self.prepared.train_examples

    @property
    def test_examples(self) -> int:
        """Count the test examples."""
        return self.prepared.test_examples

    @property
    def fingerprint(self) -> str:
        """Give twelve hexadecimal digits that are the same where, and only where, the data are the same."""
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
        """Make an endless tf.data.Dataset of training batches.

        Each epoch is all examples in an order of its own, and the next one follows at once; step g of all
        shards together takes the next batch × shards of them. Nothing but these arguments decides which.

        Args:
            batch: examples in each batch of this shard.
            shard: (index, count): which part of each global batch, of how many.
            seed: decides order and augmentation.
            augment: none, shift, shift_flip, crop_flip or cifar10_2016.
            skip_steps: begin at this step; it costs no time.
        """
        from tfdist.data.pipeline import train_batches

        split = self.prepared.split("train")
        return train_batches(split, batch, shard=shard, seed=seed, augment=augment, skip_steps=skip_steps)

    def train_parts(
        self,
        parts: Sequence[tuple[int, int]],
        *,
        of: int,
        seed: int = 0,
        augment: str = "none",
        skip_steps: int = 0,
        without: Sequence[int] = (),
    ) -> Any:
        """Make an endless tf.data.Dataset that gives of each training step these parts, in turn.

        Args:
            parts: where in the step's examples each part starts and ends.
            of: how many examples a step has.
            seed: decides order and augmentation, as for `train`.
            augment: none, shift, shift_flip, crop_flip or cifar10_2016.
            skip_steps: begin at this step; it costs no time.
            without: leave these steps out: the next one takes the place of each.
        """
        from tfdist.data.pipeline import train_parts

        split = self.prepared.split("train")
        return train_parts(
            split, parts, of=of, seed=seed, augment=augment, skip_steps=skip_steps, without=without
        )

    def test(self, batch: int, *, shard: tuple[int, int] = (0, 1)) -> Any:
        """Make a tf.data.Dataset that gives every test example once over all shards, in order.

        The last batch may be smaller, and one shard may have a batch more than another.
        """
        from tfdist.data.pipeline import test_batches

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
    """Open a data set, preparing it if this machine has not done so before.

    Args:
        name: `digits` or `shapes`, which are drawn here; a path that begins with `/`, `./`, `../` or `~`, to
            a folder of images by class, a folder of TFRecord files or an `.npz` file; or else a name of
            tensorflow-datasets, such as `mnist` or `cifar10`.
        data_dir: where tensorflow-datasets keeps its data; else TFDS_DATA_DIR, else its own default.
        cache_dir: where the decoded data are kept; else TFDIST_CACHE_DIR, else the user's cache folder. On a
            parameter-server cluster of several machines it must be the same path on all of them.
        if_unavailable: `fail`, or `digits` or `shapes`, to be taken where the data set cannot be had.
        image_size: height and width that images are resized to; without it they must all be of one size.
        examples: how many training and test examples to draw; for `digits` and `shapes`.
        seed: decides what is drawn.

    Raises:
        DataError: the data cannot be had, or are not what they should be.
        ConfigError: an argument makes no sense.
    """
    if seed < 0:
        raise ConfigError("seed", expected="a whole number from 0", received=str(seed))
    cache = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    if if_unavailable not in ("fail", *_DRAWN):
        remedy = did_you_mean(if_unavailable, ("fail", *_DRAWN))
        raise ConfigError("if_unavailable", f"there is no '{if_unavailable}'", remedy=remedy)
    if name in _DRAWN:
        if image_size is not None:
            raise ConfigError("image_size", f"cannot be chosen for {name}", remedy="Leave it out")
        return Data(name, None, _draw(name, examples, seed, cache))
    if examples is not None:
        raise ConfigError("examples", f"can be chosen for {' and '.join(_DRAWN)} only", remedy="Leave it out")
    try:
        return Data(name, None, _read(name, data_dir, cache, image_size))
    except Unavailable as error:
        if if_unavailable == "fail":
            raise
        _log.warning(
            "%s; training on the drawn '%s' in its place, as if_unavailable says", error, if_unavailable
        )
        return Data(if_unavailable, name, _draw(if_unavailable, None, seed, cache))


def _draw(name: str, examples: tuple[int, int] | None, seed: int, cache: Path) -> Prepared:
    draw, counts = _DRAWN[name]
    train, test = examples or counts
    if min(train, test) < 1:
        raise ConfigError("examples", expected="two numbers from 1", received=f"{train} and {test}")
    contents = draw(train, test, seed)  # nothing is drawn yet: they are generators
    return prepare(name, ["drawn", contents.identity], lambda: contents, cache)


def _read(
    name: str, data_dir: str | os.PathLike[str] | None, cache: Path, image_size: tuple[int, int] | None
) -> Prepared:
    if name.startswith(("/", "./", "../", "~")) or name.endswith(".npz"):
        path = Path(name).expanduser().resolve()
        if not path.exists():
            remedy = "A data set of tensorflow-datasets has no slash before its name"
            raise DataError(str(path), "does not exist", remedy=remedy)
        request = ["path", str(path), image_size, _stamp(path)]
        return prepare(path.stem, request, lambda: _from_path(path, image_size), cache)
    folder = _tfds_dir(data_dir)
    place = folder / name.partition(":")[0].partition("/")[0]
    if not place.exists():
        _fetch(name, folder)
    request = ["tfds", name, str(place), image_size, _stamp(place)]
    return prepare(name, request, lambda: _from_tfds(name, folder, image_size), cache)


# TensorFlow is loaded when a source is read, not to find out that it has been read before.


def _from_path(path: Path, image_size: tuple[int, int] | None) -> Contents:
    from tfdist.data.from_files import read_path

    return read_path(path, image_size)


def _from_tfds(name: str, folder: Path, image_size: tuple[int, int] | None) -> Contents:
    from tfdist.data.from_tfds import read_tfds

    return read_tfds(name, folder, image_size)


def _fetch(name: str, folder: Path) -> None:
    from tfdist.data.from_tfds import fetch_tfds

    fetch_tfds(name, folder)


def _tfds_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """Give tensorflow-datasets' folder: the one named, TFDS_DATA_DIR, or its own default."""
    chosen = os.fspath(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    if "://" in chosen:
        raise ConfigError(
            "data_dir", expected="a local folder", received=chosen, remedy="Copy it there first"
        )
    return Path(chosen).expanduser().resolve()


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """List the files under a path, so that a change is noticed without reading them."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
