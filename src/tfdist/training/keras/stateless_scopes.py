"""Record what a model writes to Keras variables, in scopes that leave the variables as they are."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_private import assign_at_once, variable_of_tensorflow
from tfdist._utils.temporary_patches import methods_replaced
from tfdist._utils.tf_private import PolymorphicFunction, code_of, is_no_more_than_code

_LIBRARIES = ("tensorflow", "tfdist")  # whose functions write no variables of Keras
_HERE = threading.local()  # `scopes`: those that this thread is in
_REPLACING = threading.RLock()
_NUMBERS = (bool, int, float, np.ndarray, np.generic)


class RecordingScope:
    """A stateless scope of Keras 3 that tells which variables were written to in it.

    It extends the `StatelessScope` of the model's own Keras: see `recording_scope`.

    Attributes:
        is_paused: Whether variables are written to at once, which a scope may allow for a time.
    """

    get_current_value: Callable[[Any], Any]  # of a variable in the scope
    is_paused = False

    def __init__(self, state: Sequence[tuple[Any, tf.Tensor]]) -> None:
        super().__init__(state, collect_losses=True)  # type: ignore[call-arg]
        self._written: dict[int, Any] = {}

    def __enter__(self) -> "RecordingScope":
        super().__enter__()  # type: ignore[misc]
        _HERE.scopes = [*getattr(_HERE, "scopes", ()), self]
        return self

    def __exit__(self, *error: Any) -> None:
        _HERE.scopes.pop()
        super().__exit__(*error)  # type: ignore[misc]

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note the variable that is written to."""
        variable, _ = update
        self._written[id(variable)] = variable
        super().add_update(update)  # type: ignore[misc]

    def written(self) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that were written to, with their values."""
        values: dict[int, Any] = self.state_mapping  # type: ignore[attr-defined]
        return [(variable, tf.convert_to_tensor(values[key])) for key, variable in self._written.items()]


class NonTrainableScope(RecordingScope):
    """A scope of Keras 3 that keeps the values that are assigned to variables, but not to weights."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note the variable that is written to; write at once to a weight."""
        variable, value = update
        # A layer that writes its weights, as SpectralNormalization does, computes with the new ones.
        if self.is_paused or variable.trainable:
            assign_at_once(variable, value)
            return
        super().add_update(update)

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable in the scope."""
        # Regularizers use this value as it is, and the gradient is that of TensorFlow's variable.
        value = None if self.is_paused else super().get_current_value(variable)
        return variable_of_tensorflow(variable) if value is None else value


@contextlib.contextmanager
def functions_run_in_place() -> Iterator[None]:
    """Run each tf.function that a model calls in a recording scope as a part of the graph of its caller.

    What it would write in a graph of its own could not leave that graph, and replicas exchange nothing there.
    A function that is more than its code keeps its graph.
    """
    with _REPLACING, methods_replaced([(PolymorphicFunction, "__call__", _run_in_place)]):
        yield


def _run_in_place(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    scopes = getattr(_HERE, "scopes", ())
    is_in_scope = scopes and not scopes[-1].is_paused
    package = (getattr(function.python_function, "__module__", None) or "").partition(".")[0]
    if not is_in_scope or package in _LIBRARIES or not is_no_more_than_code(function):
        return original(*args, **kwargs)
    # As TensorFlow does for a graph. (A number that is passed stays one of Python's there.)
    args, kwargs = tf.nest.map_structure(
        lambda value: tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value, (args, kwargs)
    )
    return tf.nest.map_structure(
        lambda value: tf.convert_to_tensor(value) if _is_made_tensor(value) else value,
        code_of(function)(*args, **kwargs),
    )


def _is_made_tensor(value: Any) -> bool:
    """Return whether a function returns a tensor for a value: of a number, or of a variable as it is now."""
    return isinstance(value, _NUMBERS) or hasattr(value, "assign")


def recording_scope(keras: ModuleType, state: Sequence[tuple[Any, tf.Tensor]]) -> RecordingScope:
    """Return a stateless scope in which some variables start from given values, also weights."""
    scope: RecordingScope = _of_keras(RecordingScope, keras)(state)
    return scope


def non_trainable_scope(keras: ModuleType, state: Sequence[tuple[Any, tf.Tensor]]) -> NonTrainableScope:
    """Return a scope, which writes weights at once, in which some variables start from given values."""
    scope: NonTrainableScope = _of_keras(NonTrainableScope, keras)(state)
    return scope


@functools.cache
def _of_keras(kind: type, keras: ModuleType) -> Any:
    return type(kind.__name__, (kind, keras.StatelessScope), {})


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
