"""Build Keras models by name: `build("mnist_cnn", image_shape=(28, 28, 1), classes=10)`."""

from tfdist.models.catalogue import build
from tfdist.models.layers import (
    BatchNormalization,
    CenterCrop,
    LocalResponseNormalization,
    Passing,
    Rescale,
    Standardize,
    Waves,
)

__all__ = [
    "BatchNormalization",
    "CenterCrop",
    "LocalResponseNormalization",
    "Passing",
    "Rescale",
    "Standardize",
    "Waves",
    "build",
]
