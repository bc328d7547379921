"""Make sure that all mirrored workers train the same model: the gradients of any would be averaged."""

import contextlib
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, keras_of
from tfdist._utils.keras_private import is_of_keras, layers_of
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.errors import ConfigError
from tfdist.training.workers.same_call import gathered_in_call, worker_names

# What is compared, and how many parts of 16 bits its digest has.
_PARTS = {"layers": 3, "optimizer": 3, "loss": 2}
# Attributes that may differ: Keras counts names, and draws seeds.
_MAY_DIFFER = ("name", "seed", "built", "registered_name", "filepath")
_MOST_VALUES = 64
_DEPTH = 2  # objects that attributes hold, such as the initializer of a layer, and no objects of these
_OF_OTHERS = ("Shape mismatch in the collective", "Collective instance")
_REMEDY = (
    "Make the same model on all workers: draw what differs, such as hyper-parameters, with a seed, or from "
    "random or numpy.random after tfdist.start(), which all workers share"
)


def check_same_model(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse a model whose layers, optimizer or loss differ between workers; all workers must call this.

    Raises:
        ConfigError: The model of a worker differs, or a worker is in another call.
    """
    if not has_mirrored_workers(strategy):
        return
    described = {"layers": _layers(model), "optimizer": _optimizer(model), "loss": _described(model.loss)}
    digests = [
        hashlib.blake2b(described[part].encode(), digest_size=2 * size).digest()
        for part, size in _PARTS.items()
    ]
    table = gathered_in_call(strategy, np.frombuffer(b"".join(digests), np.uint16))
    if (table == table[0]).all():
        return
    names, parts = worker_names(strategy), np.repeat(list(_PARTS), list(_PARTS.values()))
    others = [names[index] for index, row in enumerate(table) if (row != table[0]).any()]
    what = " and ".join(dict.fromkeys(parts[(table != table[0]).any(axis=0)]))
    problem = f"differs between {names[0]} and {' and '.join(others)}, in its {what}"
    raise ConfigError("the model", problem, remedy=_REMEDY)


@contextlib.contextmanager
def naming_other_variables(name: str) -> Iterator[None]:
    """Explain, in one line, that a variable which is made in the block has another shape on other workers."""
    try:
        yield
    except tf.errors.OpError as error:
        if not any(text in str(error) for text in _OF_OTHERS):
            raise
        problem = "has another shape or type on another worker, so their models differ"
        raise ConfigError(f"the variable {name}", problem, remedy=_REMEDY) from error


def _layers(model: Any) -> str:
    # A model's own attributes are the state of its calls, such as stop_training.
    kind = keras_of(model).Model
    layers = [_described(layer, 0 if isinstance(layer, kind) else _DEPTH) for layer in layers_of(model)]
    layers += [str(layer.get_vocabulary()) for layer in layers_of(model) if hasattr(layer, "get_vocabulary")]
    variables, trained = (all_variables(model), model.trainable_variables) if model.built else ([], [])
    # A weight of Keras 2 does not know that its layer is frozen.
    ids = {id(weight) for weight in trained}
    weights = [f"{tuple(weight.shape)} {weight.dtype} {id(weight) in ids}" for weight in variables]
    return "\n".join([*layers, *weights])


def _optimizer(model: Any) -> str:
    optimizer = model.optimizer
    if optimizer is None or not is_of_keras(type(optimizer)):
        return type(optimizer).__name__
    return type(optimizer).__name__ + _described(optimizer.get_config())


def _described(value: Any, depth: int = _DEPTH) -> str:
    """Return a text of a value that is the same on all workers, if they run the same script."""
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return str(value)
    if isinstance(value, (type, types.FunctionType)):
        return value.__name__
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_described(item, depth) for item in value[:_MOST_VALUES])}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_described(value[name], depth)}' for name in _compared(value))}}}"
    kind = type(value)
    # The attributes of a class of the user's own may be meant to differ, such as a path.
    has_attributes = depth and is_of_keras(kind) and hasattr(value, "__dict__")
    return kind.__name__ + (_described(vars(value), depth - 1) if has_attributes else "")


def _compared(values: Mapping[Any, Any]) -> list[str]:
    names = sorted(name for name in values if isinstance(name, str) and not name.startswith("_"))
    return [name for name in names if name not in _MAY_DIFFER]
