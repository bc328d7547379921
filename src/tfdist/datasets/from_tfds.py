"""Read data sets of tensorflow-datasets: from disk if prepared, else by a download after a network probe."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tensorflow as tf
import tensorflow_datasets as tfds

from tfdist._utils.object_store import why_unreachable
from tfdist.datasets.decode_and_check import HELD_OUT, Part, contents_of, resized
from tfdist.datasets.disk_cache import Contents, lock
from tfdist.errors import DataError, Unavailable, did_you_mean, first_line, shown

_log = logging.getLogger("tfdist")


def read_tfds(name: str, data_dir: Path, image_size: tuple[int, int] | None) -> Contents:
    """Read a data set from its TFRecord files."""
    info, where = fetch_tfds(name, data_dir).info, f"{name} in {data_dir}"
    image_key, label_key = _keys(info, where)
    train, test = _split_names(info, where)
    if test == train:
        _log.info("%s: no test images; using every %dth image for tests", name, HELD_OUT)
    if info.file_format is None or info.file_format.value != "tfrecord":
        raise DataError(where, expected="TFRecord files", received=str(info.file_format))

    classes = tuple(info.features[label_key].names)

    def parse(record: Any) -> tuple[Any, Any]:
        example = info.features.deserialize_example(record)
        return resized(example[image_key], image_size), example[label_key]

    def parts(split: str, of_test: bool | None) -> list[Part]:
        return [_part(os.fspath(path), parse, of_test) for path in info.splits[split].filepaths]

    if test == train:
        return contents_of(parts(train, False), parts(train, True), classes, where)
    return contents_of(parts(train, None), parts(test, None), classes, where)


def _part(path: str, parse: Callable[[Any], tuple[Any, Any]], of_test: bool | None) -> Part:
    """Return the examples of a file: those for tests, the others, or (None) all."""
    records = tf.data.TFRecordDataset(path)

    def is_wanted(number: Any, _: Any) -> Any:
        return tf.equal(number % HELD_OUT == HELD_OUT - 1, of_test)

    def place(number: int) -> str:
        if of_test is not None:
            number = number * HELD_OUT + HELD_OUT - 1 if of_test else number + number // (HELD_OUT - 1)
        return f"{path}: record {number}"

    if of_test is not None:
        records = records.enumerate().filter(is_wanted).map(lambda _, record: record)
    examples = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    # File by file: TensorFlow's own messages name neither the file nor the number of a record.
    return Part(examples, place, "Delete its folder to prepare the data set again")


def _keys(info: Any, where: str) -> tuple[str, str]:
    image_key, label_key = (
        info.supervised_keys if len(info.supervised_keys or ()) == 2 else ("image", "label")
    )
    features = info.features
    try:
        is_usable = isinstance(features[image_key], tfds.features.Image) and isinstance(
            features[label_key], tfds.features.ClassLabel
        )
    except (KeyError, TypeError):
        is_usable = False
    if not is_usable:
        received = ", ".join(
            f"{key}: {type(feature).__name__}" for key, feature in sorted(dict(features).items())
        )
        raise DataError(where, expected="an image and a class label", received=received)
    return image_key, label_key


def _split_names(info: Any, where: str) -> tuple[str, str]:
    """Return the splits with the training and the test data; the same one where there is no other."""
    if "train" in info.splits:
        return "train", next((name for name in ("test", "validation") if name in info.splits), "train")
    raise DataError(where, expected="a split train", received=", ".join(info.splits) or "none")


def fetch_tfds(name: str, data_dir: Path) -> Any:
    """Return the builder of a data set; download and prepare the data set if it is not on disk."""
    builder = _builder(name, data_dir)
    if _is_prepared(builder):
        return builder
    _keys(builder.info, name)  # before gigabytes of another kind of data come
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        holder = lock(data_dir / f".tfdist-{builder.name}.lock", f"{name} is being prepared in {data_dir}")
    except OSError as error:
        raise DataError(
            str(data_dir), f"cannot be written: {error.strerror}", remedy="Name another data_dir"
        ) from None
    with holder:
        # A builder reads the state of the disk when it is created, so it must be created under the lock.
        builder = _builder(name, data_dir)
        if not _is_prepared(builder):
            _download(builder, name, data_dir)
    return builder


def _builder(name: str, data_dir: Path) -> Any:
    try:
        return tfds.builder(name, data_dir=os.fspath(data_dir))
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        remedy = did_you_mean(name, known)
        if len(remedy) > 200:
            remedy = "Known: mnist, cifar10, … (tensorflow.org/datasets/catalog); write a path with a slash"
        problem = f"tensorflow-datasets has no '{name}', and there is no folder of this name"
        raise DataError("data", problem, remedy=remedy) from None
    except Exception as error:  # a malformed name, another version or config, or a package that is missing
        text = str(error).rpartition('}": ')[2].strip()  # without the arguments
        reason = text.partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__
        remedy = "Write a name such as mnist, mnist:3.0.1 or cifar10, or a path with a slash"
        raise DataError("data.name", f"{shown(name)} cannot be loaded: {reason}", remedy=remedy) from error


def _is_prepared(builder: Any) -> bool:
    # tensorflow-datasets writes into a folder of another name, and renames it when it is complete.
    return bool(builder.data_path.exists()) and bool(builder.info.splits)


def _download(builder: Any, name: str, data_dir: Path) -> None:
    urls = builder.url_infos or {}
    manual = data_dir / "downloads" / "manual"
    missing = [url for url, info in urls.items() if not (manual / info.filename).exists()]
    if missing or not urls:
        hosts = sorted({urlsplit(url).hostname or "" for url in missing} - {""}) or ["storage.googleapis.com"]
        for host in hosts:
            if reason := why_unreachable(host):
                raise Unavailable(
                    name,
                    f"is not in {data_dir}, and the download would fail: {reason}",
                    remedy=_remedy(manual, [info.filename for url, info in urls.items() if url in missing]),
                )
    _log.info("%s: downloading and preparing in %s", name, data_dir)
    try:
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(verify_ssl=True),
            download_dir=os.fspath(data_dir / "downloads"),
        )
    except Exception as error:  # a builder may raise errors of requests, of TensorFlow and its own
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise Unavailable(
            name, f"could not be prepared in {data_dir}: {reason}", remedy=_remedy(manual, [])
        ) from error


def _remedy(manual: Path, files: list[str]) -> str:
    by_hand = f"place {', '.join(files[:6])} in {manual}" if files else f"place its originals in {manual}"
    return (
        f"Set data_dir or TFDS_DATA_DIR to a folder that has it prepared, or {by_hand}, "
        "or set if_unavailable: digits"
    )
