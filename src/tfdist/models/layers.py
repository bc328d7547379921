"""Preprocess images inside a model, and normalise them fast on CPUs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

keras: Any = tf.keras
_IS_KERAS_3 = not getattr(keras, "__version__", "2").startswith("2")  # tf_keras has no __version__
_register = keras.utils.register_keras_serializable(package="tfdist")


def exact_dtype() -> str:
    """Return the number type of pixels and logits, which must not be rounded to 16 bits."""
    name = str(keras.mixed_precision.global_policy().compute_dtype)
    return "float32" if name in ("float16", "bfloat16") else name


class _PixelLayer(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """A layer that computes on pixels, which must not be rounded, and keeps the shape of the images."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"dtype": exact_dtype(), **options})

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the images."""
        return input_shape


@_register
class CenterCrop(_PixelLayer):
    """A layer that crops images to a window in their middle."""

    def __init__(self, height: int, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.height = height
        self.width = width

    def call(self, images: Any) -> Any:
        """Return the cropped images."""
        size = tf.shape(images)
        top, left = (size[1] - self.height) // 2, (size[2] - self.width) // 2
        window = images[:, top : top + self.height, left : left + self.width]
        return tf.ensure_shape(window, self.compute_output_shape(images.shape))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the cropped images."""
        return (input_shape[0], self.height, self.width, input_shape[3])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create this layer again."""
        return {**super().get_config(), "height": self.height, "width": self.width}


@_register
class Rescale(_PixelLayer):
    """A layer that multiplies pixels by a number."""

    def __init__(self, scale: float, **options: Any) -> None:
        super().__init__(**options)
        self.scale = scale

    def call(self, images: Any) -> Any:
        """Return the pixels times the scale."""
        return tf.cast(images, self.compute_dtype) * self.scale

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create this layer again."""
        return {**super().get_config(), "scale": self.scale}


@_register
class Standardize(_PixelLayer):
    """A layer that scales each image to mean 0 and deviation 1: tf.image.per_image_standardization."""

    def call(self, images: Any) -> Any:
        """Return the standardised images."""
        return tf.image.per_image_standardization(tf.cast(images, self.compute_dtype))


@_register
class BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]  # TensorFlow ships no types
    """Keras's batch normalization, in one operation, as in Keras 2; Keras 3 reads the images several times.

    It computes the same as Keras 3's layer. A pass forward and back takes a quarter of the time on a CPU.
    """

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the images, normalised by their batch in training, else by the moving averages."""
        if not (training and self.trainable) or mask is not None or not self._fits(inputs):
            return super().call(inputs, training=training, mask=mask)
        x = tf.cast(inputs, tf.float32)
        gamma, beta, old_mean, old_variance = (
            tf.convert_to_tensor(variable)
            for variable in (self.gamma, self.beta, self.moving_mean, self.moving_variance)
        )
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=gamma, offset=beta, mean=[], variance=[], epsilon=self.epsilon, is_training=True
        )
        # TensorFlow returns the unbiased variance (divided by n - 1), Keras 3 stores the batch's (by n).
        count = tf.cast(tf.size(x) // x.shape[-1], tf.float32)
        variance *= (count - 1) / count
        self.moving_mean.assign(old_mean * self.momentum + mean * (1 - self.momentum))
        self.moving_variance.assign(old_variance * self.momentum + variance * (1 - self.momentum))
        return tf.cast(y, self.compute_dtype)

    def _fits(self, inputs: Any) -> bool:
        """Return whether the operation supports these options, and Keras does not use it itself."""
        is_plain = self.center and self.scale and not getattr(self, "synchronized", False)
        is_plain = is_plain and not getattr(self, "renorm", False)
        is_image = len(inputs.shape) == 4 and self.axis in (-1, 3)
        return _IS_KERAS_3 and is_plain and is_image and self.gamma.dtype == "float32"


@_register
class LocalResponseNormalization(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow ships no types
    """A layer that divides each channel by a power of its neighbours' squared sum, as in AlexNet.

    A product with a banded matrix computes the sums over neighbours, and the gradient is explicit. On CPUs,
    this takes about a quarter of the time of TensorFlow's own op. The results differ only by rounding.

    Args:
        radius: the number of neighbours on each side.
        bias: added to the sum of squares.
        alpha: multiplies the sum of squares.
        beta: the power.
        fused: use the matrix product; otherwise TensorFlow's op, which does not support float64.
        **options: arguments of the Keras layer.
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
        """Return the normalised channels."""
        if not self.fused:
            return tf.nn.local_response_normalization(x, self.radius, self.bias, self.alpha, self.beta)
        # A sum of squares of 16-bit numbers may overflow 16 bits.
        exact = tf.cast(x, tf.float32) if x.dtype.size < 4 else x
        return tf.cast(_normalized(exact, self.radius, self.bias, self.alpha, self.beta), x.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create this layer again."""
        names = ("radius", "bias", "alpha", "beta", "fused")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _normalized(x: Any, radius: int, bias: float, alpha: float, beta: float) -> Any:
    channels = x.shape[-1]
    numbers = np.arange(channels)
    band = (np.abs(numbers - numbers[:, None]) <= radius).astype(x.dtype.as_numpy_dtype)

    def around(values: Any, factor: float) -> Any:
        """Return sums over neighbouring channels; the band is symmetric, so the gradient uses it too."""
        return tf.reshape(values, [-1, channels]) @ (factor * band)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def normalize(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        # The band includes the factor, and the addition is a bias, because oneDNN fuses both into one
        # operation. Each pass over the images that this saves shortens the step measurably.
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
    if beta == 0.75:  # two square roots take a fraction of the time of a general power
        root = tf.math.rsqrt(scale)
        return root * tf.sqrt(root)
    return tf.pow(scale, -beta)
