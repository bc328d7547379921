"""Check the arguments of fit, evaluate and predict, and convert them as Keras does."""

import inspect
import numbers
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of
from tfdist.errors import ConfigError, did_you_mean, shown

_OTHER_NAMES = {
    "data": "x",
    "dataset": "x",
    "train": "x",
    "validation": "validation_data",
    "test": "validation_data",
}
_OF_PY_DATASET = ("max_queue_size", "use_multiprocessing", "workers")  # arguments of Keras 2's fit


def strategy_of(model: Any, strategy: tf.distribute.Strategy | None) -> tf.distribute.Strategy:
    """Return the given strategy, or else the strategy in whose scope the model was made."""
    return strategy or getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()


def whole_number(name: str, value: Any, least: int) -> int:
    """Return a value as an int; NumPy integers and floats such as 64 / 16 are accepted too.

    Raises:
        ConfigError: The value is not a whole number, or is too small.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or value != value // 1 or value < least:
        remedy = f"Pass {max(least, int(value // 1))}" if isinstance(value, float) and value > least else ""
        raise ConfigError(
            name, expected=f"a whole number of at least {least}", received=shown(value), remedy=remedy
        )
    return int(value)


def validation_epochs(value: Any) -> int | frozenset[int]:
    """Return how many epochs lie between validations, or the set of epochs to validate after."""
    if isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping)):
        return frozenset(whole_number("validation_freq", epoch, 1) for epoch in value)
    return whole_number("validation_freq", value, 1)


def limited(model: Any, name: str, value: Any) -> Any:
    """Return a number of epochs or steps; if Keras's own limit is lower, warn and return the limit."""
    # Keras 2 has no such module, and the first versions of Keras 3 have no limit in it.
    config = getattr(keras_of(model), "config", None)
    limit = getattr(config, f"max_{name}", lambda: None)()
    if not limit or (value is not None and value <= limit):
        return value
    warnings.warn(f"Limiting {name} to {limit}", stacklevel=3)
    return limit


def callbacks_of(callbacks: Any) -> list[Any]:
    """Return callbacks as a flat list; accept None, one callback, nested lists and Keras's CallbackList."""
    if callbacks is None:
        return []
    is_list = any(base.__name__ == "CallbackList" for base in type(callbacks).__mro__)  # of any Keras
    parts = callbacks.callbacks if is_list else callbacks
    if isinstance(parts, (list, tuple, set)):
        return [callback for part in parts for callback in callbacks_of(part)]
    if isinstance(parts, type):
        raise ConfigError(
            "callbacks", f"contains the class {parts.__name__}", remedy=f"Pass {parts.__name__}(…)"
        )
    if not hasattr(parts, "set_model"):
        raise ConfigError("callbacks", expected="Keras callbacks", received=f"a {type(parts).__name__}")
    return [parts]


def verbosity(verbose: Any) -> int:
    """Return Keras's verbosity as a number."""
    if verbose == "auto":
        return 1
    if verbose not in (0, 1, 2):
        raise ConfigError("verbose", expected="0, 1, 2 or 'auto'", received=shown(verbose))
    return int(verbose)


def without_queue_arguments(model: Any, unknown: Mapping[str, Any]) -> list[str]:
    """Return the names of arguments without those of Keras 2 for threads and processes that read ahead.

    They change no number. tf.data reads ahead in their place.
    """
    are_known = is_keras_2(model)
    return [name for name in unknown if not (are_known and name in _OF_PY_DATASET)]


def refuse_unknown(function: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse arguments that a function of a model and `**unknown` lacks; suggest what to write instead."""
    for name in unknown:
        _, *known, _ = inspect.signature(function).parameters
        remedy = did_you_mean(name, known)
        if name in _OF_PY_DATASET:
            remedy = f"In Keras 3 it belongs to the data: pass a keras.utils.PyDataset({name}=…)"
        elif name in _OTHER_NAMES:
            remedy = f"Use {_OTHER_NAMES[name]}"
        raise ConfigError(function.__name__, f"has no argument {name!r}", remedy=remedy)
