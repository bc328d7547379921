"""Find the optimizers within an optimizer: of Keras, for groups of variables, or wrapped by a user."""

from collections.abc import Iterator, Sequence
from typing import Any

from tfdist._utils.indices_by_key import indices_by_key
from tfdist._utils.keras_private import index_in_multi_optimizer, is_of_keras


def is_loss_scaler(optimizer: Any) -> bool:
    """Return whether an optimizer is Keras's LossScaleOptimizer, or derived from it."""
    return _is_a(optimizer, "LossScaleOptimizer", "BaseLossScaleOptimizer")  # the latter in Keras 2


def without_loss_scale(optimizer: Any) -> Any:
    """Return the optimizer within a LossScaleOptimizer, and any other as it is."""
    return optimizer.inner_optimizer if is_loss_scaler(optimizer) else optimizer


def by_optimizer(optimizer: Any, variables: Sequence[Any]) -> list[tuple[Any, list[int]]] | None:
    """Return the optimizers of Keras's MultiOptimizer, each with the places of its variables, or None."""
    if not _is_multi_optimizer(optimizer):
        return None
    places = indices_by_key(index_in_multi_optimizer(optimizer, variable) for variable in variables)
    return [(optimizer.optimizers[index], found) for index, found in places.items()]


def wrapped_by(optimizer: Any) -> list[Any]:
    """Return the optimizers to which an optimizer of a user's may leave the work; none for those of Keras."""
    is_of_keras = is_loss_scaler(optimizer) or _is_multi_optimizer(optimizer)
    return [] if is_of_keras else optimizers_within(optimizer)


def optimizer_variables(optimizer: Any) -> Sequence[Any]:
    """Return an optimizer's variables, also those of optimizers that it wraps; none of None.

    Early versions of Keras 2 return them from a method.
    """
    if optimizer is None:
        return []
    within = optimizers_within(optimizer) if hasattr(optimizer, "apply") else []  # of Keras 3
    lists = [
        each.variables() if callable(each.variables) else each.variables for each in (optimizer, *within)
    ]
    return list({id(variable): variable for variables in lists for variable in variables}.values())


def optimizers_within(optimizer: Any) -> list[Any]:
    """Return the optimizers that one has as attributes, also in lists, and those within these."""
    found: dict[int, Any] = {}

    def look(value: Any) -> Iterator[Any]:
        if isinstance(value, (list, tuple)):
            for part in value:
                yield from look(part)
        elif isinstance(value, dict):
            yield from look(list(value.values()))
        elif _is_a(value, "Optimizer", "BaseOptimizer") and id(value) not in found:
            found[id(value)] = value
            yield value

    waiting = [] if optimizer is None else [optimizer]
    while waiting:
        waiting += look(list(vars(waiting.pop()).values()))
    found.pop(id(optimizer), None)
    return list(found.values())


def _is_multi_optimizer(optimizer: Any) -> bool:
    return _is_a(optimizer, "MultiOptimizer")


def _is_a(value: Any, *names: str) -> bool:
    return any(base.__name__ in names and is_of_keras(base) for base in type(value).__mro__)
