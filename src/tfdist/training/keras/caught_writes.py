"""Catch what a model writes to Keras variables, but not what it or an optimizer writes to weights."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import tensorflow as tf

from tfdist._utils.keras_private import assign_at_once, variable_of_tensorflow

__all__ = ["CaughtScope", "caught_scope", "variables_made_in"]


class CaughtScope(Protocol):
    """A scope of Keras 3 that keeps the values that are assigned to variables.

    Attributes:
        is_paused: Whether variables are written to at once.
    """

    is_paused: bool

    def __enter__(self) -> "CaughtScope":
        """Enter the scope."""

    def __exit__(self, *error: Any) -> None:
        """Leave the scope."""

    def get_current_value(self, variable: Any) -> Any:
        """Return the value that a variable has in the scope."""

    def begun(self, variable: Any) -> tf.Tensor:
        """Return the value that a variable was given at the beginning."""

    def written(self) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that were written to, with their values."""


def caught_scope(keras: ModuleType, state: Sequence[tuple[Any, tf.Tensor]]) -> CaughtScope:
    """Return a scope in which some variables start from given values."""
    scope: CaughtScope = _kind(keras)(state)
    return scope


@contextlib.contextmanager
def variables_made_in(strategy: tf.distribute.Strategy, keras: ModuleType) -> Iterator[None]:
    """Make the variables of layers that are built within the block, outside of graphs, at its end."""
    scope = keras.StatelessScope()
    scope.__enter__()
    try:
        yield
    finally:
        with strategy.scope():
            scope.__exit__()


@functools.cache
def _kind(keras: ModuleType) -> Any:
    class Scope(keras.StatelessScope):  # type: ignore[misc, name-defined]
        def __init__(self, state: Sequence[tuple[Any, tf.Tensor]]) -> None:
            super().__init__(state, collect_losses=True)
            self._begun = {id(variable): value for variable, value in state}
            self._written: dict[int, Any] = {}
            self.is_paused = False

        def add_update(self, update: tuple[Any, Any]) -> None:
            variable, value = update
            # A layer that writes its weights, as SpectralNormalization does, computes with the new ones.
            if self.is_paused or variable.trainable:
                assign_at_once(variable, value)
                return
            self._written[id(variable)] = variable
            super().add_update(update)

        def get_current_value(self, variable: Any) -> Any:
            # Regularizers use this value as it is, and the gradient is that of TensorFlow's variable.
            value = None if self.is_paused else super().get_current_value(variable)
            return variable_of_tensorflow(variable) if value is None else value

        def begun(self, variable: Any) -> tf.Tensor:
            return self._begun[id(variable)]

        def written(self) -> list[tuple[Any, tf.Tensor]]:
            return [
                (variable, tf.convert_to_tensor(self.state_mapping[key]))
                for key, variable in self._written.items()
            ]

    return Scope
