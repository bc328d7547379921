"""Record what a model writes to Keras variables, in scopes that leave the variables as they are."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_private import assign_at_once, variable_of_tensorflow
from tfdist._utils.temporary_patches import methods_replaced
from tfdist._utils.tf_private import (
    PolymorphicFunction,
    ShardedVariable,
    code_of,
    is_branch_or_loop,
    is_no_more_than_code,
)

IN_BRANCH = "in a branch or a loop, which replicas cannot share there"
_LIBRARIES = ("tensorflow", "tfdist")  # whose functions write no variables of Keras
_HERE = threading.local()  # `scopes`: those that this thread is in
_REPLACING = threading.RLock()
_NUMBERS = (bool, int, float, np.ndarray, np.generic)


class _GraphVariable:
    """A variable of a graph alone, which branches and loops of the graph may write."""

    is_own = False

    def __init__(self, variable: Any, value: Any) -> None:
        del variable
        value = tf.convert_to_tensor(value)
        self._dtype, self._shape = value.dtype, value.shape
        made = functools.partial(
            tf.raw_ops.VarHandleOp, dtype=value.dtype, shape=value.shape, shared_name=uuid4().hex
        )
        # TensorFlow's all-reduce looks for the variables behind what it adds up, but not in functions.
        self._handle = tf.function(lambda: made(), autograph=False).get_concrete_function()()
        self.assign(value)  # each run assigns before it reads

    def assign(self, value: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.cast(value, self._dtype))

    def read(self) -> Any:
        value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
        value.set_shape(self._shape)
        return value


class _VariableItself:
    """A variable of Keras that is written at once, with the value that it has in a scope."""

    is_own = True

    def __init__(self, variable: Any, value: Any) -> None:
        self._variable = variable
        if value is not variable_of_tensorflow(variable):
            self.assign(value)

    def assign(self, value: Any) -> None:
        assign_at_once(self._variable, value)

    def read(self) -> Any:
        return variable_of_tensorflow(self._variable)


class RecordingScope:
    """A stateless scope of Keras 3 that tells which variables were written to in it.

    It extends the `StatelessScope` of the model's own Keras: see `recording_scope`. No tensor of a branch or
    a loop can be read outside of it, so a variable of TensorFlow keeps what is written there.

    Attributes:
        is_paused: Whether variables are written to at once, which a scope may allow for a time.
    """

    is_paused = False

    def __init__(
        self, state: Sequence[tuple[Any, tf.Tensor]], *, is_alone: bool = False, uses_xla: bool = False
    ) -> None:
        """Store the values that variables start from, and what computes.

        Args:
            state: The variables with their values.
            is_alone: Whether one replica computes, which may write variables at once.
            uses_xla: Whether XLA compiles what it computes, for which graphs have no variables of their own.
        """
        super().__init__(state, collect_losses=True)  # type: ignore[call-arg]
        self._is_alone, self._uses_xla = is_alone, uses_xla
        self._written: dict[int, Any] = {}
        self._kept: dict[int, _GraphVariable | _VariableItself] = {}
        self._written_within: set[int] = set()  # in branches and loops

    def __enter__(self) -> "RecordingScope":
        super().__enter__()  # type: ignore[misc]
        self._graph: Any = current_graph()
        _HERE.scopes = [*getattr(_HERE, "scopes", ()), self]
        return self

    def __exit__(self, *error: Any) -> None:
        _HERE.scopes.pop()
        super().__exit__(*error)  # type: ignore[misc]

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note the variable that is written to.

        Raises:
            RuntimeError: It is written to in a branch or a loop, and the value cannot leave that.
        """
        variable, value = update
        key, kept, is_within = id(variable), self._kept_here(variable), self._is_in_branch_or_loop()
        if is_within and kept is None:
            raise RuntimeError(f"writes {variable.path} {IN_BRANCH}")
        self._written[key] = variable
        if kept is not None:
            kept.assign(value)
        if is_within:
            self._written_within.add(key)
            return
        self._written_within.discard(key)
        super().add_update(update)  # type: ignore[misc]

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable in the scope."""
        if self.is_paused:
            return variable_of_tensorflow(variable)
        kept = self._kept.get(id(variable)) if variable.trainable else self._kept_here(variable)
        if kept is not None and (
            kept.is_own or id(variable) in self._written_within or self._is_in_branch_or_loop()
        ):
            return kept.read()
        return self._value_outside(variable)

    def _value_outside(self, variable: Any) -> Any:
        # Regularizers use this value as it is. Gradients, also those of functions that have gradients of
        # their own, are those of TensorFlow's variable.
        value = super().get_current_value(variable)  # type: ignore[misc]
        return variable_of_tensorflow(variable) if value is None else value

    def _kept_here(self, variable: Any) -> "_GraphVariable | _VariableItself | None":
        """Return what keeps the value of a variable that is used in a branch or a loop, if it can be kept."""
        key, value = id(variable), self._value_outside(variable)
        if key in self._kept or not self._is_in_branch_or_loop():
            return self._kept.get(key)
        # A gradient passes no variable of a graph.
        kind: Any = _VariableItself if self._uses_xla or variable.trainable else _GraphVariable
        is_possible = self._is_alone or kind is _GraphVariable
        if not is_possible or value is None or isinstance(value, ShardedVariable):
            return None
        with self._graph.as_default():
            self._kept[key] = kind(variable, value)
        return self._kept[key]

    def _is_in_branch_or_loop(self) -> bool:
        """Return whether a graph is being built of a branch or a loop in the graph of the scope."""
        graph: Any = current_graph()
        if self._graph is None or graph is None:
            return False
        while graph is not self._graph and is_branch_or_loop(graph):
            graph = graph.outer_graph
        return graph is self._graph and graph is not current_graph()

    def written(self) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables that were written to, with their values."""
        kept_for_good = {key for key, kept in self._kept.items() if kept.is_own}
        return [
            (variable, tf.convert_to_tensor(self.get_current_value(variable)))
            for key, variable in self._written.items()
            if key not in kept_for_good
        ]


def current_graph() -> tf.Graph | None:
    """Return the graph that is being built, None if operations run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


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


def recording_scope(
    keras: ModuleType,
    state: Sequence[tuple[Any, tf.Tensor]],
    *,
    is_alone: bool = False,
    uses_xla: bool = False,
) -> RecordingScope:
    """Return a stateless scope in which some variables start from given values, also weights."""
    scope: RecordingScope = _of_keras(RecordingScope, keras)(state, is_alone=is_alone, uses_xla=uses_xla)
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
