"""Train CIFAR-10 on CPUs in minutes: the residual network of configs/cifar10-fast.yaml, and its layers.

    python -m tfdist.train --config configs/cifar10-fast.yaml

Run it in the repository's folder: the config names this model as `examples.fast_resnet:build`.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.models import BatchNormalization, Rescale, Standardize
from tfdist.models.layers import exact_dtype

keras: Any = tf.keras
_register = keras.utils.register_keras_serializable(package="examples")


@_register
class Waves(keras.layers.Layer):
    """Compute how strong every wave is in the square around each pixel, channels included.

    The waves are cosines, and of photographs nearly the principal components. Normalised one by one they tell
    all that the pixels do, without what neighbours and channels have in common, which hides the rest.

    Args:
        size: The side of the square; there are size x size x channels waves.
        **options: go to the Keras layer.
    """

    def __init__(self, size: int = 3, **options: Any) -> None:
        super().__init__(**{"dtype": exact_dtype(), **options})
        self.size = size

    def call(self, images: Any) -> Any:
        """Transform."""
        images = tf.cast(images, self.compute_dtype)
        side, channels = _cosines(self.size), _cosines(images.shape[-1])
        kernel = np.einsum("ai,bj,ck->ijkabc", side, side, channels).reshape(
            *2 * [self.size], len(channels), -1
        )
        return tf.nn.conv2d(images, tf.constant(kernel, images.dtype), strides=1, padding="SAME")

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the images, with the waves for channels."""
        return (*input_shape[:-1], self.size**2 * input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return {**super().get_config(), "size": self.size}


def _cosines(count: int) -> Any:
    """Return the orthonormal waves over so many places, the slowest first: [wave, place]."""
    waves, places = np.arange(count)[:, None], np.arange(count)
    values = np.cos(np.pi * waves * (places + 0.5) / count)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@_register
class WithMirrored(keras.layers.Layer):
    """Append the mirror images to the images of a batch, except in training."""

    def call(self, images: Any, training: Any = None) -> Any:
        """Add them."""
        return images if training else tf.concat([images, tf.reverse(images, [2])], axis=0)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the images: how many there are is left open."""
        return (None, *input_shape[1:])


@_register
class MeanWithMirrored(keras.layers.Layer):
    """Return the mean of the outputs for each image and its mirror image, except in training."""

    def call(self, found: Any, training: Any = None) -> Any:
        """Compute the means."""
        return found if training else tf.reduce_mean(tf.reshape(found, [2, -1, *found.shape[1:]]), axis=0)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of what was found."""
        return (None, *input_shape[1:])


@_register
class Passing(keras.initializers.Initializer):
    """Begin a convolution with a kernel that lets its input through, and as He and others where it widens."""

    def __init__(self) -> None:
        self._others = keras.initializers.HeNormal()

    def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        """Return the kernel."""
        *sizes, channels, wanted = shape
        through = np.zeros(shape, "float32")
        same = range(min(channels, wanted))
        diagonal = (*(size // 2 for size in sizes), same, same)
        through[diagonal] = 1
        others = tf.convert_to_tensor(self._others(shape, dtype))
        return tf.where(np.arange(wanted) < len(same), tf.cast(through, others.dtype), others)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this again: none."""
        return {}


def build(
    image_shape: tuple[int, int, int],
    classes: int,
    *,
    width: int = 64,
    weight_decay: float = 5e-4,
    asks_twice: bool = False,
) -> Any:
    """Build a residual network that learns small images in few epochs, and costs a CPU little.

    What is wide is computed on few pixels: each of three stages halves them before it normalises. A CPU does
    convolutions of many channels at its full speed, and what goes over the pixels at that of its memory. It
    sees waves in place of pixels, and begins as a network that lets them through.

    Args:
        image_shape: height, width and channels of the images.
        classes: how many classes there are.
        width: channels of the first stage; the second and third have twice and four times as many.
        weight_decay: for all kernels, times half their squares.
        asks_twice: answer with the mean of what an image and its mirror image give. Training costs the same,
            and every answer after it twice as much.
    """
    layers = keras.layers
    options = {"kernel_regularizer": keras.regularizers.L2(weight_decay / 2)} if weight_decay else {}

    def convolution(x: Any, channels: int) -> Any:
        return layers.Conv2D(
            channels, 3, padding="same", use_bias=False, kernel_initializer=Passing(), **options
        )(x)

    def activated(x: Any) -> Any:
        return layers.ReLU()(BatchNormalization(momentum=0.9)(x))

    inputs = keras.Input(image_shape)
    x = Standardize()(inputs)
    if asks_twice:
        x = WithMirrored()(x)
    # What is weak in photographs is not to be taken for nothing.
    x = BatchNormalization(momentum=0.9, epsilon=5e-4)(Waves()(x))
    x = layers.ReLU()(layers.Conv2D(width // 2, 1, kernel_initializer="he_normal", **options)(x))
    for stage in range(3):
        channels = width * 2**stage
        x = activated(layers.MaxPooling2D()(convolution(x, channels)))
        x = layers.Add()([x, activated(convolution(x, channels))])
    x = layers.Dense(classes, dtype=exact_dtype(), **options)(layers.GlobalMaxPooling2D()(x))
    # The last layer sees many maxima: at the learning rate that others bear, its steps would be too large.
    x = Rescale(1 / 8)(x)
    if asks_twice:
        x = MeanWithMirrored(dtype=exact_dtype())(x)
    return keras.Model(inputs, x, name="fast_resnet")
