"""Read the images to predict: an image, a folder of images, an .npz file or a data set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.check_and_expand_paths import default_cache_dir, exists, expanded_path, path_or_address
from tfdist.datasets.decode_and_check import READING_ERRORS, decode, gist
from tfdist.datasets.disk_cache import size_text
from tfdist.datasets.from_files import check_files, is_hidden
from tfdist.datasets.from_idx import idx_files
from tfdist.datasets.from_object_store import copy_to_cache, list_address
from tfdist.datasets.open_data import open_data
from tfdist.datasets.read_npz import read_npz
from tfdist.errors import DataError, did_you_mean
from tfdist.export.export_folder import Exported


@dataclass(frozen=True)
class ImageBatch:
    """A batch of images with their keys, their labels (None: unknown) and the names of their files."""

    images: Any
    keys: Sequence[int]
    labels: Sequence[int | None]
    files: Sequence[str] | None = None


def read_images(source: str, exported: Exported, batch: int) -> Iterator[ImageBatch]:
    """Read images in batches; raise a DataError at an image that does not fit the model.

    Args:
        source: The path of a file or a folder that exists, its address in an object store, or else the name
            of a data set.
        exported: The model.
        batch: The number of images in a batch.
    """
    place = path_or_address(source, "input")
    if isinstance(place, str):
        place = copy_to_cache(place, list_address(place), default_cache_dir())
    path = expanded_path(place, "input")
    if not exists(path):
        return _from_data(source, exported, batch)
    if path.is_file():
        if path.suffix == ".npz":
            return _from_npz(path, exported, batch)
        return _from_files([(path, None)], path.parent, exported, batch)
    if idx_files(path) or any(".tfrecord" in file.name for file in _visible(path)):
        return _from_data(str(path.resolve()), exported, batch)
    return _from_files(_files_in(path, exported.classes), path, exported, batch)


def _files_in(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int | None]]:
    """Return a folder's images with their labels; a folder inside it has the name of its images' class."""
    images: list[tuple[Path, int | None]] = []
    for path in _visible(folder):
        if not path.is_dir():
            images.append((path, None))
            continue
        if path.name not in classes:
            expected, remedy = "a folder named after a class of the model", did_you_mean(path.name, classes)
            raise DataError(str(path), expected=expected, received=f"'{path.name}'", remedy=remedy)
        for image in _visible(path):
            if image.is_dir():
                raise DataError(
                    str(image), "is a folder in the folder of a class", remedy="Replace it by images"
                )
            images.append((image, classes.index(path.name)))
    if not images:
        raise DataError(str(folder), "has no images")
    check_files([image for image, _ in images])
    return images


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not is_hidden(path))
    except OSError as error:
        raise DataError(str(folder), f"cannot be read: {error.strerror}") from None


def _from_files(
    files: list[tuple[Path, int | None]], root: Path, exported: Exported, batch: int
) -> Iterator[ImageBatch]:
    for start in range(0, len(files), batch):
        part = files[start : start + batch]
        yield ImageBatch(
            images=np.stack([_image(path, exported.image_shape) for path, _ in part]),
            keys=range(start, start + len(part)),
            labels=[label for _, label in part],
            files=[path.relative_to(root).as_posix() for path, _ in part],
        )


def _image(path: Path, shape: tuple[int, int, int]) -> Any:
    try:
        # As the signature for encoded images does, this converts grey to colour and colour to grey.
        image = _with_channels(tf.io.read_file(str(path)), shape[2]).numpy()
    except READING_ERRORS as error:
        raise DataError(str(path), f"cannot be read: {gist(error)}") from None
    _check_shape(str(path), image.shape, shape)
    return image


def _with_channels(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode an image as grey or colour; TensorFlow itself converts JPEG and PNG, but not BMP and GIF."""
    if not encoded.numpy().startswith((b"BM", b"GIF8")):
        return decode(encoded, None, channels)
    image = decode(encoded, None)[..., :3]  # without alpha
    if channels == 1 and image.shape[-1] == 3:
        return tf.image.rgb_to_grayscale(image)
    return tf.image.grayscale_to_rgb(image) if channels == 3 and image.shape[-1] == 1 else image


def _from_npz(path: Path, exported: Exported, batch: int) -> Iterator[ImageBatch]:
    arrays = read_npz(path)
    suffix = next((suffix for suffix in ("", "_test") if f"x{suffix}" in arrays), None)
    if suffix is None:
        has = ", ".join(arrays) or "none"
        raise DataError(str(path), "has neither x nor x_test", remedy=f"Its arrays: {has}")
    where = f"{path}: x{suffix}"
    images = arrays[f"x{suffix}"]
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        received = f"{images.dtype} {list(images.shape)}"
        raise DataError(where, expected="uint8 [images, height, width, channels]", received=received)
    _check_shape(where, images.shape[1:], exported.image_shape)
    count = len(images)
    labels: list[int | None] = [None] * count
    if (name := f"y{suffix}") in arrays:
        labels = _whole_numbers(path, name, arrays[name], count)
        highest = len(exported.classes) - 1
        if wrong := [label for label in labels if not 0 <= (label or 0) <= highest]:
            raise DataError(f"{path}: {name}", expected=f"labels from 0 to {highest}", received=str(wrong[0]))
    keys = _whole_numbers(path, "key", arrays["key"], count) if "key" in arrays else range(count)
    return _slices(images, keys, labels, batch)


def _whole_numbers(path: Path, name: str, values: Any, count: int) -> list[Any]:
    if values.ndim == 2 and values.shape[1] == 1:  # as CIFAR-10's labels are
        values = values[:, 0]
    if values.shape != (count,) or values.dtype.kind not in "iu":
        received = f"{values.dtype} {list(values.shape)}"
        raise DataError(f"{path}: {name}", expected=f"{count} whole numbers", received=received)
    return list(values.tolist())


def _slices(images: Any, keys: Sequence[int], labels: list[int | None], batch: int) -> Iterator[ImageBatch]:
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        yield ImageBatch(images[part], keys[part], labels[part])


def _from_data(name: str, exported: Exported, batch: int) -> Iterator[ImageBatch]:
    data = open_data(name)
    _check_shape(name, data.image_shape, exported.image_shape)
    # By name: another data set may have the same classes in another order, or other classes.
    known = [exported.classes.index(name) if name in exported.classes else None for name in data.classes]
    return _batches(data.test(batch), known)


def _batches(dataset: Any, known: list[int | None]) -> Iterator[ImageBatch]:
    start = 0
    for images, labels in dataset.as_numpy_iterator():
        yield ImageBatch(images, range(start, start + len(images)), [known[label] for label in labels])
        start += len(images)


def _check_shape(where: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(shape) != tuple(expected):
        wanted, remedy = f"an image of {size_text(expected)}", "Resize it to the size of the model's input"
        raise DataError(where, expected=wanted, received=size_text(shape), remedy=remedy)
