"""Alter whole batches at random, each example by random numbers that belong to its position alone.

So an example is altered in the same way whichever shard of whatever batch size brings it.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["AUGMENTATIONS", "draws"]

_DRAWS = 5  # random numbers an example: window's row and column, mirror, brightness, contrast
_PAGE = 1024


def draws(first: Any, batch: int, seed: int) -> Any:
    """Give the random numbers, from 0 to 1, of consecutive positions: [batch, 5]."""
    # TensorFlow's stateless random numbers take one seed a call: they are drawn in pages of fixed places.
    page = first // _PAGE
    pages = [
        tf.random.stateless_uniform(
            [_PAGE, _DRAWS], tf.stack([tf.constant(seed, tf.int64), page + k]), alg="philox"
        )
        for k in range((batch + _PAGE - 2) // _PAGE + 1)
    ]
    return tf.slice(tf.concat(pages, axis=0), tf.stack([first % _PAGE, 0]), [batch, _DRAWS])


def _shift_flip(images: Any, drawn: Any) -> Any:
    """Move by up to 2 pixels, over mirrored ones, and mirror half of the images."""
    _, height, width, _ = images.shape
    return _cut(images, height, width, drawn, flip=True, mirrored=2)


def _crop_flip(images: Any, drawn: Any) -> Any:
    """Pad by 4 mirrored pixels, cut out the original size somewhere, mirror half of the images."""
    _, height, width, _ = images.shape
    return _cut(images, height, width, drawn, flip=True, mirrored=4)


def _shift(images: Any, drawn: Any) -> Any:
    """Move by up to 2 pixels, over black."""
    _, height, width, _ = images.shape
    return _cut(tf.pad(images, [[0, 0], [2, 2], [2, 2], [0, 0]]), height, width, drawn, flip=False)


def _cifar10_2016(images: Any, drawn: Any) -> Any:
    """Cut out 24 by 24, mirror half, change brightness and contrast: what TensorFlow's CIFAR-10 tutorial did.

    Its last part, the standardisation of each image, is the model's first layer.
    """
    images = tf.cast(_cut(images, 24, 24, drawn, flip=True), tf.float32)
    brightness, contrast = (drawn[:, k, None, None, None] for k in (3, 4))
    images += 126.0 * brightness - 63.0
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
    return (images - mean) * (0.2 + 1.6 * contrast) + mean


def _cut(images: Any, height: int, width: int, drawn: Any, *, flip: bool, mirrored: int = 0) -> Any:
    """Cut one random window out of each image, mirroring half of them if asked, in a single gather.

    Windows may reach over the edges by some pixels, which are those inside, mirrored: to look them up there
    costs a fraction of the time that tf.pad takes to write them.
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
    """Mirror places beyond the first and the last; those are not repeated."""
    return size - 1 - tf.abs(size - 1 - tf.abs(places))


AUGMENTATIONS: dict[str, Callable[[Any, Any], Any] | None] = {
    "none": None,
    "shift": _shift,
    "shift_flip": _shift_flip,
    "crop_flip": _crop_flip,
    "cifar10_2016": _cifar10_2016,
}
