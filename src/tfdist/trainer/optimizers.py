"""Make the optimizer that a config names."""

import numbers
from typing import Any

import tensorflow as tf

from tfdist._utils.import_by_name import import_object
from tfdist.errors import ConfigError, shown
from tfdist.trainer.keras_names import call_named, find_class
from tfdist.trainer.learning_rate import make_learning_rate
from tfdist.trainer.sections.train import TrainSection
from tfdist.trainer.sections.values import name_and_arguments

__all__ = ["make_optimizer"]

_LEARNING_RATE = 1e-3
_MOMENTUM = {"momentum": {"momentum": 0.9}, "nesterov": {"momentum": 0.9, "nesterov": True}}
_NO_OPTIMIZERS = ("LossScaleOptimizer", "MultiOptimizer")


def make_optimizer(section: TrainSection, own: Any, steps: int) -> Any:
    """Return the optimizer; None if the model's own stays as it is.

    Args:
        section: The config's section.
        own: The optimizer that the model was compiled with, if any.
        steps: The number of steps in the run.

    Raises:
        ConfigError: There is no such optimizer, or it does not accept its arguments.
    """
    is_own = own is not None and section.optimizer is None
    if is_own and section.learning_rate is None and section.schedule is None and not section.warmup:
        return None
    rate = make_learning_rate(
        section.learning_rate or (_learning_rate_of(own) if is_own else _LEARNING_RATE),
        schedule=section.schedule or "constant",
        warmup=section.warmup,
        steps=steps,
    )
    if is_own:
        return type(own).from_config({**own.get_config(), "learning_rate": rate})
    name, arguments = name_and_arguments(section.optimizer or "adam")
    place = f"train.optimizer: {name}"
    if "learning_rate" in arguments:
        remedy = "Write train.learning_rate, with which the schedule begins"
        raise ConfigError(place, "has a learning_rate of its own", remedy=remedy)
    if ":" in name:
        optimizer = call_named(place, import_object(name, "train.optimizer"), arguments, rate)
        if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
            raise ConfigError(place, expected="an optimizer of Keras", received=shown(optimizer))
        return optimizer
    if name in _MOMENTUM:
        name, arguments = "sgd", {**_MOMENTUM[name], **arguments}
    kind = find_class(
        "train.optimizer",
        name,
        tf.keras.optimizers,
        tf.keras.optimizers.Optimizer,
        without=_NO_OPTIMIZERS,
        others=tuple(_MOMENTUM),
    )
    return call_named(place, kind, {"learning_rate": rate, **arguments})


def _learning_rate_of(optimizer: Any) -> float:
    value = optimizer.get_config().get("learning_rate")
    if not isinstance(value, numbers.Real):
        problem = "is needed: the model's own optimizer has no constant learning rate to begin with"
        raise ConfigError("train.learning_rate", problem, remedy="Set it, or leave out schedule and warmup")
    return float(value)
