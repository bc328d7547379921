"""Record what a model writes to Keras variables, in scopes that leave the variables as they are."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import tensorflow as tf

from tfdist._utils.keras_private import assign_at_once, variable_of_tensorflow

__all__ = [
    "NonTrainableScope",
    "RecordingScope",
    "non_trainable_scope",
    "recording_scope",
    "variables_made_in",
]


class RecordingScope(Protocol):
    """A stateless scope of Keras 3 that tells which variables were written to in it."""

    def __enter__(self) -> "RecordingScope":
        """Enter the scope."""

    def __exit__(self, *error: Any) -> None:
        """Leave the scope."""

    def get_current_value(self, variable: Any) -> Any:
        """Return the value that a variable has in the scope."""

    def written(self) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that were written to, with their values."""


class NonTrainableScope(RecordingScope, Protocol):
    """A scope of Keras 3 that keeps the values that are assigned to variables.

    Attributes:
        is_paused: Whether variables are written to at once.
    """

    is_paused: bool

    def __enter__(self) -> "NonTrainableScope":
        """Enter the scope."""

    def begun(self, variable: Any) -> tf.Tensor:
        """Return the value that a variable was given at the beginning."""


def recording_scope(keras: ModuleType, state: Sequence[tuple[Any, tf.Tensor]]) -> RecordingScope:
    """Return a stateless scope in which some variables start from given values, also weights."""
    scope: RecordingScope = _recording_kind(keras)(state, collect_losses=True)
    return scope


def non_trainable_scope(keras: ModuleType, state: Sequence[tuple[Any, tf.Tensor]]) -> NonTrainableScope:
    """Return a scope in which some variables start from given values."""
    scope: NonTrainableScope = _non_trainable_kind(keras)(state)
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
def _recording_kind(keras: ModuleType) -> Any:
    class Scope(keras.StatelessScope):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._written: dict[int, Any] = {}

        def add_update(self, update: tuple[Any, Any]) -> None:
            variable, _ = update
            self._written[id(variable)] = variable
            super().add_update(update)

        def written(self) -> list[tuple[Any, tf.Tensor]]:
            return [
                (variable, tf.convert_to_tensor(self.state_mapping[key]))
                for key, variable in self._written.items()
            ]

    return Scope


@functools.cache
def _non_trainable_kind(keras: ModuleType) -> Any:
    class Scope(_recording_kind(keras)):  # type: ignore[misc]
        def __init__(self, state: Sequence[tuple[Any, tf.Tensor]]) -> None:
            super().__init__(state, collect_losses=True)
            self._begun = {id(variable): value for variable, value in state}
            self.is_paused = False

        def add_update(self, update: tuple[Any, Any]) -> None:
            variable, value = update
            # A layer that writes its weights, as SpectralNormalization does, computes with the new ones.
            if self.is_paused or variable.trainable:
                assign_at_once(variable, value)
                return
            super().add_update(update)

        def get_current_value(self, variable: Any) -> Any:
            # Regularizers use this value as it is, and the gradient is that of TensorFlow's variable.
            value = None if self.is_paused else super().get_current_value(variable)
            return variable_of_tensorflow(variable) if value is None else value

        def begun(self, variable: Any) -> tf.Tensor:
            return self._begun[id(variable)]

    return Scope
