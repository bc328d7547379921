"""Build the models that tfdist ships.

The inputs are pixels from 0 to 255 of any number type, the outputs are one logit for each class. The first
layers preprocess the pixels, so that training, evaluation and the exported model agree. The same code builds
Keras 3 and Keras 2 models, depending on `tf.keras`.
"""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.models.layers import (
    BatchNormalization,
    CenterCrop,
    LocalResponseNormalization,
    Rescale,
    Standardize,
    exact_dtype,
)

keras: Any = tf.keras


def mnist_cnn(image_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.5) -> Any:
    """Build the CNN of TensorFlow's MNIST tutorial for experts: 3.3 million weights, over 99 % accuracy."""
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
        classes: the number of classes.
        crop: the side of the square to cut from the middle of an image, at most the image's own.
        weight_decay: the factor of half the squared weights of the two dense layers, as in the tutorial.
        fused_normalization: normalise by a matrix product, which is faster on CPUs than TensorFlow's own op.
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
            # The augmentation crops training images; all other images come in full size.
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
    """Build a residual network for small images, with normalisation and activation before each convolution.

    Args:
        image_shape: height, width and channels of the images.
        classes: the number of classes.
        depth: the number of layers, 6 n + 2 for three stages of n blocks.
        width: the channels of the first stage; the second and third have two and four times as many.
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
