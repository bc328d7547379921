"""Build the models that tfdist ships.

Each takes images as they are, pixels from 0 to 255 of any number type, and gives one logit a class. What has
to be done to the pixels, the first layers do, so that training, evaluation and the exported model agree.
The same code makes Keras 3 and Keras 2 models: whichever `tf.keras` is.
"""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.models.layers import (
    BatchNormalization,
    CenterCrop,
    LocalResponseNormalization,
    MeanWithMirrored,
    Passing,
    Rescale,
    Standardize,
    Waves,
    WithMirrored,
    exact_dtype,
)

__all__ = ["cifar10_cnn", "fast_resnet", "mnist_cnn", "resnet"]

keras: Any = tf.keras


def mnist_cnn(image_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.5) -> Any:
    """Build the CNN of TensorFlow's MNIST tutorial for experts: 3.3 million weights, 99 % and more."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            Rescale(1 / 255),
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(1024, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(classes, dtype=exact_dtype()),
        ],
        name="mnist_cnn",
    )


def cifar10_cnn(
    image_shape: tuple[int, int, int],
    classes: int,
    *,
    crop: int = 24,
    weight_decay: float = 0.004,
    fused_normalization: bool = True,
) -> Any:
    """Build the CNN of TensorFlow's CIFAR-10 tutorial of 2016, with its initial weights and weight decay.

    Args:
        image_shape: height, width and channels of the images.
        classes: how many classes there are.
        crop: the side of the square that is cut from the middle of an image; smaller images are refused.
        weight_decay: for the two dense layers, times half the squared weights, as the tutorial had it.
        fused_normalization: normalise by a matrix product, faster on CPUs than TensorFlow's own op.
    """
    height, width, channels = image_shape
    if crop > min(height, width):
        raise ConfigError(
            "model cifar10_cnn: crop", expected=f"at most {min(height, width)}", received=str(crop)
        )
    layers = keras.layers

    def initial(deviation: float) -> Any:
        return keras.initializers.TruncatedNormal(stddev=deviation)

    def convolution() -> Any:
        return layers.Conv2D(64, 5, padding="same", activation="relu", kernel_initializer=initial(0.05))

    def dense(units: int) -> Any:
        return layers.Dense(
            units,
            activation="relu",
            kernel_initializer=initial(0.04),
            bias_initializer=keras.initializers.Constant(0.1),
            kernel_regularizer=keras.regularizers.L2(weight_decay / 2) if weight_decay else None,
        )

    def normalization() -> Any:
        return LocalResponseNormalization(4, bias=1.0, alpha=0.001 / 9, beta=0.75, fused=fused_normalization)

    second = convolution()
    second.bias_initializer = keras.initializers.Constant(0.1)
    return keras.Sequential(
        [
            # Cropped for training already, and whole everywhere else.
            keras.Input((None, None, channels)),
            CenterCrop(crop, crop),
            Standardize(),
            convolution(),
            layers.MaxPooling2D(3, 2, padding="same"),
            normalization(),
            second,
            normalization(),
            layers.MaxPooling2D(3, 2, padding="same"),
            layers.Flatten(),
            dense(384),
            dense(192),
            layers.Dense(classes, kernel_initializer=initial(1 / 192), dtype=exact_dtype()),
        ],
        name="cifar10_cnn",
    )


def resnet(image_shape: tuple[int, int, int], classes: int, *, depth: int = 20, width: int = 16) -> Any:
    """Build a residual network for small images, normalised and activated before each convolution.

    Args:
        image_shape: height, width and channels of the images.
        classes: how many classes there are.
        depth: 6 n + 2 layers in three stages of n blocks.
        width: channels of the first stage; the second and third have twice and four times as many.
    """
    if depth < 8 or depth % 6 != 2:
        raise ConfigError("model resnet: depth", expected="8, 14, 20, … (6 n + 2)", received=str(depth))
    layers = keras.layers

    def convolution(x: Any, channels: int, size: int, stride: int = 1) -> Any:
        return layers.Conv2D(
            channels, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal"
        )(x)

    def activated(x: Any) -> Any:
        return layers.ReLU()(BatchNormalization(momentum=0.9, epsilon=1e-5)(x))

    inputs = keras.Input(image_shape)
    x = convolution(Standardize()(inputs), width, 3)
    for stage in range(3):
        channels = width * 2**stage
        for block in range((depth - 2) // 6):
            stride = 2 if stage and not block else 1
            before = activated(x)
            shortcut = convolution(before, channels, 1, stride) if stride > 1 else x
            x = convolution(activated(convolution(before, channels, 3, stride)), channels, 3)
            x = layers.Add()([x, shortcut])
    x = layers.GlobalAveragePooling2D()(activated(x))
    return keras.Model(inputs, layers.Dense(classes, dtype=exact_dtype())(x), name="resnet")


def fast_resnet(
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
