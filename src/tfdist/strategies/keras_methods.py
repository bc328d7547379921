"""Make `model.fit` tfdist's for models of a cluster: Keras 3's own trains on one machine only."""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import wrap_names_of_attributes
from tfdist._utils.tf_private import outside_scopes

__all__ = ["replace_methods", "save_and_load_outside_scopes"]

_METHODS = ("fit", "evaluate", "predict")
_outside: list[Any] = []  # the function that `save_and_load_outside_scopes` has made


def replace_methods(kinds: tuple[type[tf.distribute.Strategy], ...]) -> None:
    """Replace `fit`, `evaluate` and `predict` for models that are made under strategies of some kinds.

    Other models keep Keras's own methods. Nothing changes if Keras 3 is not loaded, or if the methods have
    been replaced before.
    """
    keras = sys.modules.get("keras")
    if keras is None or keras.__version__.startswith("2."):
        return
    model = keras.Model
    for name in _METHODS:
        if name not in vars(model):  # it is a method of a base class
            setattr(model, name, _by_strategy(name, getattr(model, name), kinds))
    save_and_load_outside_scopes()


def save_and_load_outside_scopes() -> None:
    """Make Keras 3 learn the names of attributes outside of the scope of mirrored workers.

    Keras makes an optimizer whenever it saves a model or loads weights, to learn what attributes it has. In
    the scope, the variables of this optimizer would wait for all workers, but a callback saves on the chief
    alone, and BackupAndRestore loads there.
    """
    if not _outside:
        _outside.append(wrap_names_of_attributes(_outside_scopes))


def _outside_scopes(of_keras: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of_keras)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
            return of_keras(*args, **kwargs)
        with outside_scopes():
            return of_keras(*args, **kwargs)

    return function


def _by_strategy(name: str, of_keras: Callable[..., Any], kinds: tuple[type, ...]) -> Callable[..., Any]:
    """Return a method that is tfdist's for models of strategies of some kinds, and Keras's for others."""

    @functools.wraps(of_keras)
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(model.distribute_strategy, kinds):
            return of_keras(model, *args, **kwargs)
        # By its public name: the package that trains is above this one.
        return getattr(importlib.import_module("tfdist"), name)(model, *args, **kwargs)

    return method
