"""Read a user's own images: a folder by class, TFRecord files, idx files, or an .npz file."""

import hashlib
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tfdist._utils.read_untrusted_files import check_regular
from tfdist.datasets.decode_and_check import (
    HELD_OUT,
    READING_ERRORS,
    Part,
    contents_of,
    decode,
    first_shape,
    gist,
    resize_images,
)
from tfdist.datasets.disk_cache import Batches, Contents
from tfdist.datasets.from_idx import idx_files, read_idx, read_labels_file
from tfdist.datasets.read_npz import read_npz
from tfdist.errors import DataError

_TEST_NAMES = ("test", "validation", "val")
_IMAGE_KEYS = ("image", "image/encoded")
_LABEL_KEYS = ("label", "image/class/label")
# Files that systems put into folders of images; names that begin with a dot are others.
_HIDDEN = ("desktop.ini", "thumbs.db")
# The idx files of Fashion-MNIST hold no names. These are those of tensorflow-datasets.
_CLASSES = {
    "fashion_mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
}
_log = logging.getLogger("tfdist")


def read_path(path: Path, image_size: tuple[int, int] | None) -> Contents:
    """Read a folder by class, a folder of TFRecord or idx files, or an .npz file."""
    if path.is_file():
        if path.suffix != ".npz":
            raise DataError(
                str(path), expected="an .npz file or a folder", received=f"a {path.suffix or 'bare'} file"
            )
        return resize_contents(_read_npz(path), image_size)
    if not path.is_dir():
        raise DataError(str(path), expected="an .npz file or a folder", received="a special file")
    if idx_files(path):
        return resize_contents(read_idx(path, _CLASSES.get(path.name, ())), image_size)
    if tfrecords := sorted(file for file in path.iterdir() if ".tfrecord" in file.name):
        check_files(tfrecords)
        return _read_tfrecords(path, tfrecords, image_size)
    return _read_folder(path, image_size)


def resize_contents(contents: Contents, image_size: tuple[int, int] | None) -> Contents:
    """Return contents whose images are resized, if `image_size` is set and is not their size."""
    if image_size is None or contents.image_shape[:2] == tuple(image_size):
        return contents

    def resize(batches: Batches) -> Batches:
        for images, labels in batches:
            yield resize_images(tf.constant(images), image_size).numpy(), labels

    shape = (*image_size, contents.image_shape[2])
    train, test = resize(contents.train), resize(contents.test)
    return replace(contents, image_shape=shape, train=train, test=test)


def _read_npz(path: Path) -> Contents:
    arrays = read_npz(path)
    missing = {"x_train", "y_train", "x_test", "y_test"} - arrays.keys()
    if missing:
        raise DataError(
            str(path), f"has no {', '.join(sorted(missing))}", remedy=f"Its arrays: {', '.join(arrays)}"
        )
    labels = {split: _npz_labels(path, f"y_{split}", arrays[f"y_{split}"]) for split in ("train", "test")}
    images = {split: _npz_images(path, f"x_{split}", arrays[f"x_{split}"]) for split in ("train", "test")}
    keys = {"images": "x", "labels": "y"}
    places = {(split, part): f"{path}: {keys[part]}_{split}" for split in images for part in keys}
    return Contents.of_arrays(images, labels, tuple(map(str, arrays.get("classes", ()))), places)


def _npz_images(path: Path, key: str, images: Any) -> Any:
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        expected = "uint8 [examples, height, width, 1 or 3]"
        raise DataError(f"{path}: {key}", expected=expected, received=f"{images.dtype} {list(images.shape)}")
    return images


def _npz_labels(path: Path, key: str, labels: Any) -> Any:
    if labels.ndim == 2 and labels.shape[1] == 1:  # as CIFAR-10's are
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or labels.min() < 0:
        received = f"{labels.dtype} {list(labels.shape)}"
        expected = "whole numbers from 0, one for each example"
        raise DataError(f"{path}: {key}", expected=expected, received=received)
    return labels


def _read_folder(root: Path, image_size: tuple[int, int] | None) -> Contents:
    train_files, test_files = _split_folder(root)
    if hidden := sum(is_hidden(path) for path in root.rglob("*")):
        _log.info("%s: %d hidden files are skipped, such as .DS_Store and Thumbs.db", root, hidden)
    classes = tuple(sorted(train_files))
    # The first image decides whether all are grey or in colour; then grey images get three channels.
    first = first_shape(_image_part(train_files, classes, image_size, channels=0))[2]
    channels = 0 if first == 1 else 3
    # Mixed, since evaluation.batches takes the first test images.
    train, test = (
        _image_part(files, classes, image_size, channels=channels, is_mixed=files is test_files)
        for files in (train_files, test_files)
    )
    return contents_of([train], [test], classes, str(root))


def _split_folder(root: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    train, test = root / "train", next((root / name for name in _TEST_NAMES if (root / name).is_dir()), None)
    if train.is_dir() != (test is not None):
        has, lacks = ("train", "test") if train.is_dir() else (str(test.name if test else ""), "train")
        raise DataError(
            str(root), f"has a folder '{has}' and no folder '{lacks}'", remedy="Add it, or remove both"
        )
    if test is None:
        files = _files_by_class(root)
        train_files = {
            name: [file for number, file in enumerate(images, 1) if number % HELD_OUT]
            for name, images in files.items()
        }
        test_files = {name: images[HELD_OUT - 1 :: HELD_OUT] for name, images in files.items()}
        _log.info("%s: no test images; using every %dth image of each class for tests", root, HELD_OUT)
    else:
        train_files, test_files = _files_by_class(train), _files_by_class(test)
        for here, there, folder in ((train_files, test_files, test), (test_files, train_files, train)):
            if lacking := sorted(here.keys() - there.keys()):
                raise DataError(str(folder), f"has no folder for the class '{lacking[0]}'")
    return train_files, test_files


def _files_by_class(root: Path) -> dict[str, list[Path]]:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(folders) < 2:
        raise DataError(
            str(root), expected="one folder for each of at least two classes", received=str(len(folders))
        )
    images = {}
    for folder in folders:
        images[folder.name] = sorted(path for path in folder.iterdir() if not is_hidden(path))
        if inner := next((path for path in images[folder.name] if path.is_dir()), None):
            remedy = "Replace it by its images"
            raise DataError(str(inner), "is a folder in the folder of a class", remedy=remedy)
        if not images[folder.name]:
            raise DataError(str(folder), "the folder of a class has no images")
        check_files(images[folder.name])
    return images


def check_files(paths: Sequence[Path]) -> None:
    """Raise DataError at a path that TensorFlow cannot name, or whose reading could block or never end."""
    for path in paths:
        try:
            check_regular(path)
            str(path).encode()
        except OSError as error:
            raise DataError(str(path), f"cannot be read: {error.strerror}", remedy="Remove it") from None
        except UnicodeEncodeError:
            raise DataError(str(path), "has a name that is not UTF-8", remedy="Rename it") from None


def is_hidden(path: Path) -> bool:
    """Return whether a file is one that systems put into folders of images, such as `Thumbs.db`."""
    return path.name.startswith(".") or path.name.lower() in _HIDDEN


def _image_part(
    files: dict[str, list[Path]],
    classes: tuple[str, ...],
    image_size: tuple[int, int] | None,
    channels: int,
    *,
    is_mixed: bool = False,
) -> Part:
    """Return the images of a split: class after class, or in a mixed order that follows from their names."""
    images = [(path, label) for label, name in enumerate(classes) for path in files[name]]
    if is_mixed:
        images.sort(key=lambda image: hashlib.sha256(f"{image[1]}/{image[0].name}".encode()).digest())
    paths, labels = [str(path) for path, _ in images], [label for _, label in images]

    def load(path: Any, label: Any) -> tuple[Any, Any]:
        image = decode(tf.io.read_file(path), image_size, channels)
        found = tf.shape(image)[-1]
        return image[..., : found - 1 + found % 2], label  # a second or fourth channel is transparency

    dataset = tf.data.Dataset.from_tensor_slices(
        (tf.constant(paths, tf.string), tf.constant(labels, tf.int32))
    )
    return Part(dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE), paths.__getitem__)


def _read_tfrecords(root: Path, files: list[Path], image_size: tuple[int, int] | None) -> Contents:
    splits = {file: _split_of(file) for file in files}
    test_name = next((name for name in _TEST_NAMES if name in splits.values()), "")
    train, test = ([file for file in files if splits[file] == split] for split in ("train", test_name))
    if unused := sorted(file.name for file in files if splits[file] not in ("train", test_name)):
        _log.warning("%s: the test data are the files of '%s'; not used: %s", root, test_name, unused[0])
    if not train or not test:
        received = ", ".join(file.name for file in files[:5])
        raise DataError(
            str(root),
            expected="TFRecord files with 'train' and with 'test' in their names",
            received=received,
        )
    image_key, label_key = _record_keys(train[0])
    names = root / "labels.txt"
    if names.exists():
        classes = read_labels_file(names)
    else:
        classes = tuple(map(str, range(max(_highest_label(file, label_key) for file in train) + 1)))

    train_parts, test_parts = (
        [_record_part(path, image_key, label_key, image_size) for path in paths] for paths in (train, test)
    )
    return contents_of(train_parts, test_parts, classes, str(root))


def _split_of(file: Path) -> str | None:
    """Return the split that a file's name stands for: by a whole word of it, or else by any part."""
    name = file.name.lower()
    for pattern in (r"(?<![a-z]){}(?![a-z])", "{}"):
        found = [word for word in ("train", *_TEST_NAMES) if re.search(pattern.format(word), name)]
        if found[0:1] == ["train"] and len(found) > 1:
            raise DataError(str(file), "its name stands for training and for test data", remedy="Rename it")
        if found:
            return found[0]
    return None


def _record_part(path: Path, image_key: str, label_key: str, image_size: tuple[int, int] | None) -> Part:
    features = {
        image_key: tf.io.FixedLenFeature([], tf.string),
        label_key: tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        return decode(example[image_key], image_size), example[label_key]

    records = tf.data.TFRecordDataset(str(path)).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return Part(records, lambda number: f"{path}: record {number}")


def _record_keys(path: Path) -> tuple[str, str]:
    """Return the names of image and label in the records."""
    example = next(_examples(path), None)
    if example is None:
        raise DataError(str(path), "has no records")
    kinds = {key: feature.WhichOneof("kind") for key, feature in example.features.feature.items()}
    image = next((key for key in _IMAGE_KEYS if kinds.get(key) == "bytes_list"), None)
    label = next((key for key in _LABEL_KEYS if kinds.get(key) == "int64_list"), None)
    if image is None or label is None:
        expected = f"bytes named {' or '.join(_IMAGE_KEYS)} and an integer named {' or '.join(_LABEL_KEYS)}"
        received = ", ".join(f"{key} ({kind})" for key, kind in sorted(kinds.items())) or "no features"
        raise DataError(f"{path}: record 0", expected=expected, received=received)
    return image, label


def _highest_label(path: Path, label_key: str) -> int:
    highest = 0
    for number, example in enumerate(_examples(path)):
        values = example.features.feature[label_key].int64_list.value
        if len(values) != 1:
            raise DataError(
                f"{path}: record {number}", expected=f"one {label_key}", received=str(len(values))
            )
        highest = max(highest, values[0])
    return highest


def _examples(path: Path) -> Iterator[Any]:
    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    for number in itertools.count():
        try:
            example = tf.train.Example.FromString(next(records))
        except StopIteration:
            return
        except (DecodeError, *READING_ERRORS) as error:
            raise DataError(f"{path}: record {number}", f"cannot be read: {gist(error)}") from None
        yield example
