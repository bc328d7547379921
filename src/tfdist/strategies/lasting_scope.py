"""Keep a strategy's scope entered for the rest of a script, also when Keras clears its session."""

import atexit
import functools
import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["enter_for_good"]


def enter_for_good(strategy: tf.distribute.Strategy) -> None:
    """Enter a strategy's scope until the process ends.

    TensorFlow stores the scope in the default graph of the thread, which `keras.utils.clear_session()`
    replaces. Models that are made later would belong to no strategy, and each worker would train alone. So
    the function that replaces the graph enters the scope again.
    """
    _Entered(strategy)


class _Entered:
    """The scope of a strategy, which is entered in the default graph of this thread."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._enter()
        atexit.register(self._leave)
        for module in _modules():
            module.reset_default_graph = self._entering_again(module.reset_default_graph)

    def _enter(self) -> None:
        self._scope = self._strategy.scope()
        self._scope.__enter__()

    def _leave(self) -> None:
        if tf.distribute.get_strategy() is self._strategy:
            self._scope.__exit__(None, None, None)

    def _entering_again(self, reset: Callable[[], None]) -> Any:
        @functools.wraps(reset)
        def reset_and_enter() -> None:
            if tf.distribute.get_strategy() is not self._strategy:  # in other threads
                reset()
                return
            self._leave()
            try:
                reset()
            finally:
                self._enter()

        return reset_and_enter


def _modules() -> list[Any]:
    """Return the modules from which Keras 3 and Keras 2 take `reset_default_graph`."""
    return [tf.compat.v1, importlib.import_module("tensorflow.compat.v2").compat.v1]
