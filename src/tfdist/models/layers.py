"""Give what Keras lacks: preprocessing inside the model, normalisations made for CPUs, first kernels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = [
    "BatchNormalization",
    "CenterCrop",
    "LocalResponseNormalization",
    "MeanWithMirrored",
    "Passing",
    "Rescale",
    "Standardize",
    "Waves",
    "WithMirrored",
    "exact_dtype",
]

keras: Any = tf.keras
_IS_KERAS_3 = not getattr(keras, "__version__", "2").startswith("2")  # tf_keras does not say
_register = keras.utils.register_keras_serializable(package="tfdist")


def exact_dtype() -> str:
    """Give the number type for what must not be rounded to 16 bits: pixels' statistics, and logits."""
    name = str(keras.mixed_precision.global_policy().compute_dtype)
    return "float32" if name in ("float16", "bfloat16") else name


@_register
class CenterCrop(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Cut a window out of the middle of images; those of just its size go through as they are."""

    def __init__(self, height: int, width: int, **options: Any) -> None:
        super().__init__(**{"dtype": exact_dtype(), **options})
        self.height = height
        self.width = width

    def call(self, images: Any) -> Any:
        """Cut the window out."""
        size = tf.shape(images)
        top, left = (size[1] - self.height) // 2, (size[2] - self.width) // 2
        window = images[:, top : top + self.height, left : left + self.width]
        return tf.ensure_shape(window, self.compute_output_shape(images.shape))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Give the window's shape."""
        return (input_shape[0], self.height, self.width, input_shape[3])

    def get_config(self) -> dict[str, Any]:
        """Give the arguments that make this layer again."""
        return {**super().get_config(), "height": self.height, "width": self.width}


@_register
class Rescale(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Multiply pixels by a number."""

    def __init__(self, scale: float, **options: Any) -> None:
        super().__init__(**{"dtype": exact_dtype(), **options})
        self.scale = scale

    def call(self, images: Any) -> Any:
        """Multiply."""
        return tf.cast(images, self.compute_dtype) * self.scale

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Give the shape of the images."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Give the arguments that make this layer again."""
        return {**super().get_config(), "scale": self.scale}


@_register
class Standardize(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Give each image mean 0 and deviation 1, as tf.image.per_image_standardization does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"dtype": exact_dtype(), **options})

    def call(self, images: Any) -> Any:
        """Standardise."""
        return tf.image.per_image_standardization(tf.cast(images, self.compute_dtype))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Give the shape of the images."""
        return input_shape


@_register
class Waves(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Say of each pixel how strong every wave is in the square around it, channels included.

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
        """Give the shape of the images, with the waves for channels."""
        return (*input_shape[:-1], self.size**2 * input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        """Give the arguments that make this layer again."""
        return {**super().get_config(), "size": self.size}


def _cosines(count: int) -> Any:
    """Give the orthonormal waves over so many places, the slowest first: [wave, place]."""
    waves, places = np.arange(count)[:, None], np.arange(count)
    values = np.cos(np.pi * waves * (places + 0.5) / count)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@_register
class WithMirrored(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Let the mirror images follow the images of a batch, except in training."""

    def call(self, images: Any, training: Any = None) -> Any:
        """Add them."""
        return images if training else tf.concat([images, tf.reverse(images, [2])], axis=0)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Give the shape of the images: how many there are is left open."""
        return (None, *input_shape[1:])


@_register
class MeanWithMirrored(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Give for each image the mean of what was found for it and for its mirror image, except in training."""

    def call(self, found: Any, training: Any = None) -> Any:
        """Take the means."""
        return found if training else tf.reduce_mean(tf.reshape(found, [2, -1, *found.shape[1:]]), axis=0)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Give the shape of what was found."""
        return (None, *input_shape[1:])


@_register
class Passing(keras.initializers.Initializer):  # type: ignore[misc]  # TensorFlow ships no types
    """Begin a convolution with a kernel that lets its input through, and as He and others where it widens."""

    def __init__(self) -> None:
        self._others = keras.initializers.HeNormal()

    def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        """Give the kernel."""
        *sizes, channels, wanted = shape
        through = np.zeros(shape, "float32")
        same = range(min(channels, wanted))
        diagonal = (*(size // 2 for size in sizes), same, same)
        through[diagonal] = 1
        others = tf.convert_to_tensor(self._others(shape, dtype))
        return tf.where(np.arange(wanted) < len(same), tf.cast(through, others.dtype), others)

    def get_config(self) -> dict[str, Any]:
        """Give the arguments that make this again: none."""
        return {}


@_register
class BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]  # TensorFlow ships no types
    """Normalise images by their batch in one operation, as Keras 2 does; Keras 3 goes over them many times.

    The same function as Keras 3's layer: forward and back it takes a quarter of the time on a CPU.
    """

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalise, by the batch where this trains and else by the moving averages."""
        if not (training and self.trainable) or mask is not None or not self._fits(inputs):
            return super().call(inputs, training=training, mask=mask)
        x = tf.cast(inputs, tf.float32)
        gamma, beta, old_mean, old_variance = (
            tf.convert_to_tensor(each)
            for each in (self.gamma, self.beta, self.moving_mean, self.moving_variance)
        )
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=gamma, offset=beta, mean=[], variance=[], epsilon=self.epsilon, is_training=True
        )
        # TensorFlow gives the variance of what the batch is a sample of, and Keras 3 keeps that of the batch.
        count = tf.cast(tf.size(x) // x.shape[-1], tf.float32)
        variance *= (count - 1) / count
        self.moving_mean.assign(old_mean * self.momentum + mean * (1 - self.momentum))
        self.moving_variance.assign(old_variance * self.momentum + variance * (1 - self.momentum))
        return tf.cast(y, self.compute_dtype)

    def _fits(self, inputs: Any) -> bool:
        """Say whether the operation can do what this layer is to do, and Keras does not take it by itself."""
        is_plain = self.center and self.scale and not getattr(self, "synchronized", False)
        is_plain = is_plain and not getattr(self, "renorm", False)
        is_image = len(inputs.shape) == 4 and self.axis in (-1, 3)
        return _IS_KERAS_3 and is_plain and is_image and self.gamma.dtype == "float32"


@_register
class LocalResponseNormalization(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """Divide each channel by a power of the energy in its neighbours, as AlexNet did.

    The sums over neighbours are a product with a banded matrix, and the gradient is written out. On CPUs this
    takes about a quarter of the time of TensorFlow's own op, and differs from it by rounding only.

    Args:
        radius: how many channels on each side count as neighbours.
        bias: added to the energy.
        alpha: multiplies the energy.
        beta: the power.
        fused: use the matrix product; otherwise TensorFlow's op, which has no float64.
        **options: go to the Keras layer.
    """

    def __init__(
        self,
        radius: int = 5,
        *,
        bias: float = 1.0,
        alpha: float = 1.0,
        beta: float = 0.5,
        fused: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.radius, self.bias, self.alpha, self.beta, self.fused = radius, bias, alpha, beta, fused

    def call(self, x: Any) -> Any:
        """Normalise."""
        if not self.fused:
            return tf.nn.local_response_normalization(x, self.radius, self.bias, self.alpha, self.beta)
        # The energy of 16-bit numbers may be none of 16 bits.
        exact = tf.cast(x, tf.float32) if x.dtype.size < 4 else x
        return tf.cast(_normalized(exact, self.radius, self.bias, self.alpha, self.beta), x.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Give the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Give the arguments that make this layer again."""
        names = ("radius", "bias", "alpha", "beta", "fused")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _normalized(x: Any, radius: int, bias: float, alpha: float, beta: float) -> Any:
    channels = x.shape[-1]
    numbers = np.arange(channels)
    band = (np.abs(numbers - numbers[:, None]) <= radius).astype(x.dtype.as_numpy_dtype)

    def around(values: Any, factor: float) -> Any:
        """Sum over the neighbouring channels; the band is symmetric, so its gradient is itself."""
        return tf.reshape(values, [-1, channels]) @ (factor * band)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def normalize(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        # What multiplies the sums is in the band, and what is added to them a bias: oneDNN makes one
        # operation of both, and each pass over the images that is left out is seen in the time of a step.
        sums = tf.nn.bias_add(around(tf.square(x), alpha), tf.fill([channels], tf.constant(bias, x.dtype)))
        scale = tf.reshape(sums, tf.shape(x))
        factor = _inverse_power(scale, beta)

        def gradient(upstream: Any) -> Any:
            scaled = upstream * factor
            others = around(scaled * x / scale, -2 * alpha * beta)
            return scaled + x * tf.reshape(others, tf.shape(x))

        return x * factor, gradient

    return normalize(x)


def _inverse_power(scale: Any, beta: float) -> Any:
    if beta == 0.5:
        return tf.math.rsqrt(scale)
    if beta == 0.75:  # two roots take a fraction of the time of a general power
        root = tf.math.rsqrt(scale)
        return root * tf.sqrt(root)
    return tf.pow(scale, -beta)
