"""Build Keras models by name: `build("mnist_cnn", image_shape=(28, 28, 1), classes=10)`."""

from tfdist.models.layers import (
    BatchNormalization,
    CenterCrop,
    LocalResponseNormalization,
    Rescale,
    Standardize,
)
from tfdist.models.model_by_name import build

__all__ = [
    "BatchNormalization",
    "CenterCrop",
    "LocalResponseNormalization",
    "Rescale",
    "Standardize",
    "build",
]
