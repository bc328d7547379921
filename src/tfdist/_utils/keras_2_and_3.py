"""Support Keras 2 and Keras 3: both may be installed, and a model belongs to one of them."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import is_of_keras, values_in_order
from tfdist.errors import ConfigError


def keras_of(model: Any) -> ModuleType:
    """Return the module, keras or tf_keras, of a Model, or of a layer with Keras 3's trainer."""
    for base in type(model).__mro__:
        if base.__name__ in ("Model", "TensorFlowTrainer") and is_of_keras(base):
            return sys.modules[base.__module__.partition(".")[0]]
    raise ConfigError("model", expected="a Keras model", received=f"a {type(model).__name__}")


def is_keras_2(model: Any) -> bool:
    """Return whether a model is of Keras 2 (also called tf_keras)."""
    version: str = keras_of(model).__version__
    return version.startswith("2.")


def in_order(model: Any, logs: dict[str, Any]) -> Any:
    """Return the values of logs as `model.evaluate` does: in the order of the metrics, or the only value."""
    if is_keras_2(model):
        names = list(model.metrics_names)
        values = [logs[name] for name in [*names, *sorted(logs.keys() - names)] if name in logs]
        return values[0] if len(values) == 1 else values
    return values_in_order(model, logs)


def flat_logs(logs: dict[str, Any]) -> dict[str, Any]:
    """Return logs without the dicts in them, such as one of all compiled metrics under one name."""
    parts = [value if isinstance(value, dict) else {name: value} for name, value in logs.items()]
    return {name: value for part in parts for name, value in part.items()}


def as_in_keras(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a model's layers and losses as Keras does in a graph.

    Keras 2 converts them with AutoGraph, but not the steps that call them. Keras 3 converts nothing.
    """
    return functools.partial(_calling_function(), function) if is_keras_2(model) else function


@functools.cache
def _calling_function() -> Callable[..., Any]:
    # The function itself is converted, which tells the layers that AutoGraph is on.
    converted: Callable[..., Any] = tf.autograph.to_graph(_call, recursive=False)
    return converted


def _call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def build_for(model: Any, x: Any) -> None:
    """Build a model for inputs of a spec, unless it is built or has no `call`."""
    keras = keras_of(model)
    if model.built or not has_call(model):
        return
    if is_keras_2(model):  # its layers make their variables outside of the graph that calls them
        tf.function(as_in_keras(model, model), autograph=False).get_concrete_function(x)
        return

    def symbolic(spec: Any) -> Any:
        kind = {tf.SparseTensorSpec: {"sparse": True}, tf.RaggedTensorSpec: {"ragged": True}}
        return keras.KerasTensor(spec.shape, spec.dtype, **kind.get(type(spec), {}))

    model(tf.nest.map_structure(symbolic, x))


def all_variables(model: Any) -> list[Any]:
    """Return the variables of a model, without the vocabularies that Keras 2 lists among them."""
    return [variable for variable in model.variables if not hasattr(variable, "get_tensors")]


def trained_variables(model: Any) -> list[Any]:
    """Return the variables that a model trains now; none of one of Keras 2 with parts that are not built."""
    try:
        return list(model.trainable_variables)
    except ValueError:
        if not is_keras_2(model):
            raise
        return []


def has_call(model: Any) -> bool:
    """Return whether a model defines `call`; a model with a custom train_step need not."""
    return type(model).call is not keras_of(model).Model.call
