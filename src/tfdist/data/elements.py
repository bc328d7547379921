"""Take examples out of files in batches, and where one is not as it should be, find out which."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.store import Batches, Contents
from tfdist.errors import DataError

__all__ = ["READING_ERRORS", "Part", "contents_of", "decode", "gist", "resized"]

_AT_ONCE = 256

READING_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


@dataclass(frozen=True)
class Part:
    """Hold a tf.data.Dataset of (image, label), and say where each element stands."""

    dataset: Any
    place: Callable[[int], str]
    remedy: str = ""


def contents_of(train: list[Part], test: list[Part], classes: tuple[str, ...], source: str) -> Contents:
    """Make contents whose every image has the shape of the first one."""
    shape = _first_shape(train[0])
    if shape[2] not in (1, 3):
        raise DataError(train[0].place(0), expected="1 or 3 channels", received=str(shape[2]))
    return Contents(
        shape,
        classes,
        train=_checked(train, shape, classes, f"{source}: train"),
        test=_checked(test, shape, classes, f"{source}: test"),
    )


def decode(encoded: Any, image_size: tuple[int, int] | None, channels: int = 0) -> Any:
    """Decode a JPEG, PNG, BMP or GIF (its first picture) in the graph, resizing it if asked."""
    return resized(tf.io.decode_image(encoded, channels=channels, expand_animations=False), image_size)


def resized(image: Any, image_size: tuple[int, int] | None) -> Any:
    """Resize an image of bytes in the graph, if asked."""
    if image_size is None:
        return image
    # decode_image gives no static rank, which resize wants.
    image = tf.ensure_shape(image, [None, None, None])
    smooth = tf.image.resize(image, image_size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(smooth), 0, 255), tf.uint8)


def _first_shape(part: Part) -> tuple[int, int, int]:
    try:
        image, _ = next(part.dataset.take(1).as_numpy_iterator())
    except StopIteration:
        raise DataError(part.place(0), "there is none: it is empty") from None
    except READING_ERRORS as error:
        raise _unreadable(part, 0, error) from None
    height, width, channels = image.shape
    return height, width, channels


def _checked(
    parts: list[Part], shape: tuple[int, int, int], classes: tuple[str, ...], source: str
) -> Batches:
    count = 0
    for part in parts:
        batches = part.dataset.batch(_AT_ONCE).prefetch(2).as_numpy_iterator()
        while True:
            try:
                images, labels = next(batches)
            except StopIteration:
                break
            except READING_ERRORS as error:
                # The message names no element, and sizes that differ fail here too: look at each by itself.
                _find_bad_one(part, shape, len(classes))
                raise DataError(source, f"cannot be read: {gist(error)}", remedy=part.remedy) from None
            if images.shape[1:] != shape or labels.min() < 0 or labels.max() >= len(classes):
                _find_bad_one(part, shape, len(classes))
            count += len(labels)
            yield images, labels.astype(np.int32)
    if not count:
        raise DataError(source, "holds no examples")


def _find_bad_one(part: Part, shape: tuple[int, int, int], classes: int) -> None:
    """Go through the elements one by one, and raise at the first that cannot be used."""
    elements = part.dataset.as_numpy_iterator()
    number = 0
    while True:
        try:
            image, label = next(elements)
        except StopIteration:
            return
        except READING_ERRORS as error:
            raise _unreadable(part, number, error) from None
        where = part.place(number)
        if image.shape != shape:
            remedy = "Give image_size, to which all are then resized"
            if image.shape[2] != shape[2]:
                remedy = "Convert all to colour, or all to grey"
            raise DataError(
                where, expected=f"an image of {_size(shape)}", received=_size(image.shape), remedy=remedy
            )
        if not 0 <= label < classes:
            raise DataError(where, expected=f"a label from 0 to {classes - 1}", received=str(label))
        number += 1


def _unreadable(part: Part, number: int, error: Any) -> DataError:
    return DataError(part.place(number), f"cannot be read: {gist(error)}", remedy=part.remedy)


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def gist(error: Any) -> str:
    """Give the first line of TensorFlow's message, without the ops' names around it."""
    line = str(getattr(error, "message", error)).splitlines()[0]
    return line.rpartition("}} ")[2].partition(" [Op:")[0].strip().rstrip(".")
