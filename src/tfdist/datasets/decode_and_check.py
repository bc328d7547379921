"""Read examples from files in batches, and name the first malformed example."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.datasets.disk_cache import Batches, Contents, check_classes, size_text
from tfdist.errors import DataError, first_line

_AT_ONCE = 256
HELD_OUT = 10  # in data without test images, every tenth image is one

READING_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


@dataclass(frozen=True)
class Part:
    """A tf.data.Dataset of (image, label), and the place of each element in the files."""

    dataset: Any
    place: Callable[[int], str]
    remedy: str = ""


def contents_of(train: list[Part], test: list[Part], classes: tuple[str, ...], source: str) -> Contents:
    """Return contents that raise a DataError at an image whose shape differs from the first one's."""
    check_classes(classes, source)
    shape = first_shape(train[0])
    if shape[2] not in (1, 3):
        raise DataError(train[0].place(0), expected="1 or 3 channels", received=str(shape[2]))
    return Contents(
        shape,
        classes,
        train=_checked(train, shape, classes, f"{source}: train"),
        test=_checked(test, shape, classes, f"{source}: test"),
    )


def decode(encoded: Any, image_size: tuple[int, int] | None, channels: int = 0) -> Any:
    """Decode a JPEG, PNG, BMP or GIF (its first image) in the graph; resize it if `image_size` is set."""
    return resized(tf.io.decode_image(encoded, channels=channels, expand_animations=False), image_size)


def resized(image: Any, image_size: tuple[int, int] | None) -> Any:
    """Resize a uint8 image in the graph, if `image_size` is set."""
    if image_size is None:
        return image
    # decode_image sets no static rank, but resize needs one.
    return resize_images(tf.ensure_shape(image, [None, None, None]), image_size)


def resize_images(images: Any, image_size: tuple[int, int]) -> Any:
    """Resize one uint8 image, or a batch of them."""
    smooth = tf.image.resize(images, image_size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(smooth), 0, 255), tf.uint8)


def first_shape(part: Part) -> tuple[int, int, int]:
    """Return height, width and channels of the first image.

    Raises:
        DataError: There is none, or it cannot be read.
    """
    try:
        image, _ = next(part.dataset.take(1).as_numpy_iterator())
    except StopIteration:
        raise DataError(part.place(0), "is missing: the source has no examples") from None
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
                # TensorFlow's message does not name the element, and unequal sizes also fail here.
                _raise_at_first_bad(part, shape, len(classes))
                raise DataError(source, f"cannot be read: {gist(error)}", remedy=part.remedy) from None
            if images.shape[1:] != shape or labels.min() < 0 or labels.max() >= len(classes):
                _raise_at_first_bad(part, shape, len(classes))
            count += len(labels)
            yield images, labels.astype(np.int32)
    if not count:
        raise DataError(source, "has no examples")


def _raise_at_first_bad(part: Part, shape: tuple[int, int, int], classes: int) -> None:
    """Read the elements one by one, and raise a DataError at the first malformed one."""
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
            remedy = "Set image_size, to which tfdist resizes all images"
            if image.shape[2] != shape[2]:
                remedy = "Convert all images to colour, or all to grey"
            raise DataError(
                where,
                expected=f"an image of {size_text(shape)}",
                received=size_text(image.shape),
                remedy=remedy,
            )
        if not 0 <= label < classes:
            raise DataError(where, expected=f"a label from 0 to {classes - 1}", received=str(label))
        number += 1


def _unreadable(part: Part, number: int, error: Any) -> DataError:
    return DataError(part.place(number), f"cannot be read: {gist(error)}", remedy=part.remedy)


def gist(error: Any) -> str:
    """Return the first line of TensorFlow's message, without the names of ops."""
    return first_line(error).rpartition("}} ")[2].partition(" [Op:")[0].strip().rstrip(".")
