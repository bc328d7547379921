"""Augment whole batches at random; an example's random numbers depend only on its position in the epochs.

So the augmentation of an example does not depend on the shards or on the batch size.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_DRAWS = 5  # random numbers of an example: the window's row and column, mirror, brightness, contrast
_PAGE = 1024


def draws(first: Any, batch: int, seed: int) -> Any:
    """Return the random numbers, from 0 to 1, of consecutive positions: [batch, 5]."""
    # TensorFlow's stateless random functions take one seed a call, so one call draws 1,024 positions.
    page = first // _PAGE
    pages = [
        tf.random.stateless_uniform(
            [_PAGE, _DRAWS], tf.stack([tf.constant(seed, tf.int64), page + k]), alg="philox"
        )
        for k in range((batch + _PAGE - 2) // _PAGE + 1)
    ]
    return tf.slice(tf.concat(pages, axis=0), tf.stack([first % _PAGE, 0]), [batch, _DRAWS])


def augmented_shape(name: str, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape of an image after an augmentation."""
    return (24, 24, image_shape[2]) if name == "cifar10_2016" else image_shape


def _shift_flip(images: Any, drawn: Any) -> Any:
    """Shift images by up to 2 pixels, fill up with mirrored pixels, and mirror half of the images."""
    _, height, width, _ = images.shape
    return _cut(images, height, width, drawn, flip=True, mirrored=2)


def _crop_flip(images: Any, drawn: Any) -> Any:
    """Pad by 4 mirrored pixels, crop to the original size at random, and mirror half of the images."""
    _, height, width, _ = images.shape
    return _cut(images, height, width, drawn, flip=True, mirrored=4)


def _shift(images: Any, drawn: Any) -> Any:
    """Shift images by up to 2 pixels, and fill up with black."""
    _, height, width, _ = images.shape
    return _cut(tf.pad(images, [[0, 0], [2, 2], [2, 2], [0, 0]]), height, width, drawn, flip=False)


def _cifar10_2016(images: Any, drawn: Any) -> Any:
    """Crop to 24 by 24, mirror half, change brightness and contrast, as TensorFlow's CIFAR-10 tutorial did.

    The tutorial then standardises each image; here the model's first layer does.
    """
    images = tf.cast(_cut(images, 24, 24, drawn, flip=True), tf.float32)
    brightness, contrast = (drawn[:, k, None, None, None] for k in (3, 4))
    images += 126.0 * brightness - 63.0
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
    return (images - mean) * (0.2 + 1.6 * contrast) + mean


def _cut(images: Any, height: int, width: int, drawn: Any, *, flip: bool, mirrored: int = 0) -> Any:
    """Cut one random window out of each image in a single gather, and mirror half of them if `flip`.

    Windows may reach over the edges by `mirrored` pixels. Reading the mirrored pixels from the inside takes a
    fraction of the time in which tf.pad writes them.
    """
    count, full_height, full_width, channels = images.shape
    larger = 2 * mirrored + 1
    choices = tf.constant([full_height - height + larger, full_width - width + larger], tf.float32)
    top, left = tf.unstack(tf.cast(drawn[:, :2] * choices, tf.int32)[:, :, None] - mirrored, axis=1)
    rows, columns = top + tf.range(height), tf.range(width)[None, :]
    if flip:
        columns = tf.where(drawn[:, 2, None] < 0.5, width - 1 - columns, columns)
    rows, columns = _inside(rows, full_height), _inside(left + columns, full_width)
    rows += tf.range(count)[:, None] * full_height
    pixels = rows[:, :, None] * full_width + columns[:, None, :]
    return tf.gather(tf.reshape(images, [-1, channels]), pixels)


def _inside(places: Any, size: int) -> Any:
    """Mirror places beyond the first and the last one, which themselves are not repeated."""
    return size - 1 - tf.abs(size - 1 - tf.abs(places))


AUGMENTATIONS: dict[str, Callable[[Any, Any], Any] | None] = {
    "none": None,
    "shift": _shift,
    "shift_flip": _shift_flip,
    "crop_flip": _crop_flip,
    "cifar10_2016": _cifar10_2016,
}
