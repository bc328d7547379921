"""Tell the generations of Keras apart: both may be installed, and a model is of one of them."""

import sys
from types import ModuleType
from typing import Any

from tfdist.errors import ConfigError

__all__ = ["is_keras_2", "keras_of"]


def keras_of(model: Any) -> ModuleType:
    """Give the keras (or tf_keras) that a model is made with."""
    for each in type(model).__mro__:
        root = each.__module__.partition(".")[0]
        if each.__name__ == "Model" and root in ("keras", "tf_keras"):
            return sys.modules[root]
    raise ConfigError("model", expected="a Keras model", received=f"a {type(model).__name__}")


def is_keras_2(model: Any) -> bool:
    """Say whether a model is of Keras 2 (also called tf_keras)."""
    version: str = keras_of(model).__version__
    return version.startswith("2.")
