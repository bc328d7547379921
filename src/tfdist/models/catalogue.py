"""Find a model by name: one of ours, or a function of the user's."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.models.architectures import cifar10_cnn, fast_resnet, mnist_cnn, resnet

__all__ = ["build"]

_SHIPPED: dict[str, Callable[..., Any]] = {
    "mnist_cnn": mnist_cnn,
    "cifar10_cnn": cifar10_cnn,
    "resnet": resnet,
    "fast_resnet": fast_resnet,
}


def build(name: str, image_shape: tuple[int, int, int], classes: int, **options: Any) -> Any:
    """Build a model by name.

    Args:
        name: `mnist_cnn`, `cifar10_cnn`, `resnet`, `fast_resnet`, or the user's own function,
            `my_pkg.my_module:build`, which is called as `build(image_shape, classes, **options)`.
        image_shape: height, width and channels of the images.
        classes: how many classes there are.
        **options: go to the function that builds the model.

    Raises:
        ConfigError: there is no such model, or it cannot be built like this.
    """
    function = _imported(name) if ":" in name else _shipped(name)
    try:
        inspect.signature(function).bind(image_shape, classes, **options)
    except TypeError as error:
        known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        raise ConfigError(
            f"model {name}",
            f"cannot be called so: {error}",
            remedy=f"Its options: {', '.join(known) or 'none'}",
        ) from None
    model = function(image_shape, classes, **options)
    if not isinstance(model, tf.keras.Model):
        remedy = (
            f"It has to be a tf.keras.Model, which here is {tf.keras.Model.__module__.partition('.')[0]}'s"
        )
        raise ConfigError(f"model {name}", expected="a Keras model", received=shown(model), remedy=remedy)
    return model


def _shipped(name: str) -> Callable[..., Any]:
    if name not in _SHIPPED:
        remedy = f"{did_you_mean(name, _SHIPPED)}, or your own as my_pkg.my_module:build"
        raise ConfigError("model", f"there is no '{name}'", remedy=remedy)
    return _SHIPPED[name]


def _imported(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, ValueError) as error:
        remedy = "Is its folder the current one, or on PYTHONPATH?"
        raise ConfigError(f"model {name}", f"cannot be imported: {error}", remedy=remedy) from error
    function = getattr(module, attribute, None)
    if function is None:
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        remedy = did_you_mean(attribute, known) if known else ""
        raise ConfigError(f"model {name}", f"{module_name} has no '{attribute}'", remedy=remedy)
    if not callable(function):
        raise ConfigError(f"model {name}", expected="a function", received=shown(function))
    return function  # type: ignore[no-any-return]
