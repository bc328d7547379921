"""Find classes by Keras's names, and call what a config names with its arguments."""

import inspect
import re
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from tfdist._utils.keras_private import is_of_keras
from tfdist.errors import ConfigError, did_you_mean, first_line


def find_class(
    place: str,
    name: str,
    module: ModuleType,
    base: type,
    without: Collection[str],
    others: Collection[str] = (),
) -> type:
    """Return a class of Keras's by a name that Keras accepts: `AdamW`, `adamw`, `kl_divergence`, `mse`.

    Args:
        place: The place of the name, for messages.
        name: The name.
        module: One of Keras's public modules, such as `tf.keras.losses`.
        base: The base class of those that may be named.
        without: The names of classes that may not be named.
        others: Further names to suggest if there is no such class.

    Raises:
        ConfigError: There is no such class.
    """
    classes = {
        snake_case(kind.__name__): kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
        if kind.__name__ not in without
    }
    by_key = {_key(known): kind for known, kind in classes.items()}
    if _key(name) in by_key:
        return by_key[_key(name)]
    alias = by_key.get(_key(_meaning(name, module)))
    if alias is None:
        remedy = did_you_mean(name.lower(), [*classes, *others])
        raise ConfigError(place, f"there is no '{name}'", remedy=remedy)
    return alias


def call_named(place: str, function: Any, arguments: Mapping[str, Any], *positional: Any) -> Any:
    """Call a class or function with a config's arguments.

    Raises:
        ConfigError: It does not accept them.
    """
    check_arguments(place, function, arguments, *positional)
    try:
        return function(*positional, **arguments)
    except (TypeError, ValueError) as error:
        if not is_of_keras(function):
            raise
        problem = f"Keras does not accept its arguments: {first_line(error)}"
        raise ConfigError(place, problem) from error


def check_arguments(place: str, function: Any, arguments: Mapping[str, Any], *positional: Any) -> None:
    """Raise ConfigError if a class or function does not accept a config's arguments."""
    parameters = parameters_of(function)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    for name in arguments:
        if name not in known and (is_of_keras(function) or not takes_all):
            raise ConfigError(place, f"has no argument '{name}'", remedy=did_you_mean(name, known))
    try:
        inspect.Signature(list(parameters.values())).bind(*positional, **arguments)
    except TypeError as error:
        raise ConfigError(
            place, f"does not accept its arguments: {error}", remedy=f"It takes {', '.join(known)}"
        ) from None


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, in their order, without `self`."""
    # Keras 2's metrics have a __new__ whose signature says nothing.
    signature = inspect.signature(function.__init__ if inspect.isclass(function) else function)
    parameters = dict(signature.parameters)
    if inspect.isclass(function):
        parameters.pop(next(iter(parameters), ""), None)
    return parameters


def snake_case(name: str) -> str:
    """Return a class's name as Keras writes it in a config.

    >>> snake_case("SparseTopKCategoricalAccuracy")
    'sparse_top_k_categorical_accuracy'
    """
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def _meaning(name: str, module: Any) -> str:
    """Return what Keras takes a short name such as `mse` for; an empty text if it is unknown."""
    get = getattr(module, "get", None)  # keras.callbacks has none
    try:
        found = None if get is None else get(name)
    except ValueError:
        return ""
    return "" if found is None else str(getattr(found, "__name__", "") or type(found).__name__)
