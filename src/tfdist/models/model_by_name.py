"""Find a model by name: one that tfdist ships, or a function of the user's."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.import_by_name import import_object
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.models.architectures import cifar10_cnn, mnist_cnn, resnet

_SHIPPED: dict[str, Callable[..., Any]] = {
    "mnist_cnn": mnist_cnn,
    "cifar10_cnn": cifar10_cnn,
    "resnet": resnet,
}


def build(name: str, image_shape: tuple[int, int, int], classes: int, **options: Any) -> Any:
    """Build a model by name.

    Args:
        name: `mnist_cnn`, `cifar10_cnn`, `resnet`, or the user's own function, `my_pkg.my_module:build`,
            which is called as `build(image_shape, classes, **options)`.
        image_shape: height, width and channels of the images.
        classes: the number of classes.
        **options: arguments of the function that builds the model.

    Raises:
        ConfigError: The model does not exist, or does not accept these options.
    """
    function = _imported(name) if ":" in name else _shipped(name)
    try:
        inspect.signature(function).bind(image_shape, classes, **options)
    except TypeError as error:
        known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        raise ConfigError(
            f"model {name}",
            f"does not accept these options: {error}",
            remedy=f"Its options: {', '.join(known) or 'none'}",
        ) from None
    model = function(image_shape, classes, **options)
    if not isinstance(model, tf.keras.Model):
        remedy = f"Return a tf.keras.Model, which here is {tf.keras.Model.__module__.partition('.')[0]}'s"
        raise ConfigError(f"model {name}", expected="a Keras model", received=shown(model), remedy=remedy)
    return model


def _shipped(name: str) -> Callable[..., Any]:
    if name == "fast_resnet":
        problem = "tfdist no longer ships 'fast_resnet'"
        raise ConfigError(
            "model", problem, remedy="Write examples.fast_resnet:build, in the repository's folder"
        )
    if name not in _SHIPPED:
        remedy = did_you_mean(name, _SHIPPED, other="or your own as my_pkg.my_module:build")
        raise ConfigError("model", f"there is no '{name}'", remedy=remedy)
    return _SHIPPED[name]


def _imported(name: str) -> Callable[..., Any]:
    function = import_object(name, "model")
    if not callable(function):
        raise ConfigError(f"model {name}", expected="a function", received=shown(function))
    return function  # type: ignore[no-any-return]
