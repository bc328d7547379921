"""Change Keras and TensorFlow for the rest of the process, where a block would end too early.

All patches that last:

- methods of models that train and predict: `replace_methods`, and `training.start` after `tfdist.start()`;
- the names of attributes that Keras 3 learns, and the classes that it loads: `save_and_load_outside_scopes`;
- the reset of the main thread's graph, and the functions of SavedModels: `enter_for_good`;
- the conversion of variables to numbers: `let_variables_be_numbers` in `_utils/tf_private`;
- lookup tables in loops and branches: `let_branches_look_up` there;
- the counter of a tf.train.Checkpoint: `make_save_counters_outside_scopes` there;
- the hooks for uncaught errors: `training/error_messages/print_uncaught_errors`.

`_utils/temporary_patches` has those that end with a block.
"""

import atexit
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import wrap_names_of_attributes, wrap_search_of_classes
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import (
    call_loaded_functions_on_first_replica,
    outside_scopes,
    wrap_reset_of_graph,
)


def enter_for_good(strategy: tf.distribute.Strategy) -> None:
    """Enter a strategy's scope until the process ends.

    TensorFlow stores the scope in the default graph of the thread, which `keras.utils.clear_session()`
    replaces. Models that are made later would belong to no strategy, and each worker would train alone. So
    a reset of this thread's graph enters the scope again.
    """
    _Entered(strategy)
    call_loaded_functions_on_first_replica()


class _Entered:
    """The scope of a strategy, which is entered in the default graph of this thread."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._enter()
        atexit.register(self._leave)
        wrap_reset_of_graph(self._entering_again)

    def _enter(self) -> None:
        self._scope = self._strategy.scope()
        self._scope.__enter__()

    def _leave(self) -> None:
        if tf.distribute.get_strategy() is self._strategy:
            self._scope.__exit__(None, None, None)

    def _entering_again(self, reset: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(reset)
        def reset_and_enter() -> None:
            self._leave()
            try:
                reset()
            finally:
                self._enter()

        return reset_and_enter


# Methods, and the modules of what replaces them: the package that trains is above this one.
_METHODS = {
    "fit": "tfdist",
    "evaluate": "tfdist",
    "predict": "tfdist",
    "predict_on_batch": "tfdist.training.predict",
}
# Names in saved models, and the modules that register them.
_REGISTERED = {"tfdist>LazyAdam": "tfdist.training.keras.optimizers.lazy_adam"}
_outside: list[Any] = []  # the functions that `save_and_load_outside_scopes` has made


def replace_methods(kinds: tuple[type[tf.distribute.Strategy], ...]) -> None:
    """Replace `fit`, `evaluate`, `predict` and `predict_on_batch` for models made under some strategies.

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

    Keras also finds tfdist's own classes, which are registered only where they are used: tools that store
    models with all registered classes would store them with each model, which then needs tfdist.
    """
    if not _outside:
        _outside.append(wrap_names_of_attributes(_outside_scopes))
        _outside.append(wrap_search_of_classes(_registering_own))


def _registering_own(of_keras: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of_keras)
    def function(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name in _REGISTERED:
            importlib.import_module(_REGISTERED[name])
        return of_keras(name, *args, **kwargs)

    return function


def _outside_scopes(of_keras: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of_keras)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not has_mirrored_workers(tf.distribute.get_strategy()):
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
        return getattr(importlib.import_module(_METHODS[name]), name)(model, *args, **kwargs)

    return method
