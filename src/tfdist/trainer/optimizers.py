"""Make the optimizer that a config names, and the schedule of its learning rate."""

import numbers
from typing import Any

import tensorflow as tf

from tfdist._utils.import_by_name import import_object
from tfdist._utils.keras_private import exclude_as
from tfdist._utils.nested_optimizers import is_loss_scaler
from tfdist._utils.shared_config_types import name_and_arguments
from tfdist.errors import ConfigError, shown
from tfdist.trainer.keras_names import call_named, find_class
from tfdist.trainer.sections.train import TrainSection

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
    scaler, own = (own, own.inner_optimizer) if is_loss_scaler(own) else (None, own)
    if is_own and section.learning_rate is None and section.schedule is None and not section.warmup:
        return None
    rate = make_learning_rate(
        section.learning_rate or (_learning_rate_of(own) if is_own else _LEARNING_RATE),
        schedule=section.schedule or "constant",
        warmup=section.warmup,
        steps=steps,
    )
    if is_own:
        optimizer = type(own).from_config({**own.get_config(), "learning_rate": rate})
        exclude_as(own, optimizer)
        if scaler is None:
            return optimizer
        options = {name: getattr(scaler, name) for name in ("initial_scale", "dynamic_growth_steps")}
        return type(scaler)(optimizer, **options)
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


def make_learning_rate(value: float, *, schedule: str, warmup: float, steps: int) -> Any:
    """Return the learning rate as a number, or as a schedule over the steps of a run."""
    rate: Any = value
    rising = round(warmup * steps)
    if schedule == "cosine":
        rate = tf.keras.optimizers.schedules.CosineDecay(value, max(1, steps - rising))
    return Rising(value, rising, rate) if rising else rate


class Rising(tf.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule in which the learning rate rises over some steps, and then follows another schedule.

    Keras's own CosineDecay has a warm-up only since version 2.13.
    """

    def __init__(self, value: float, steps: int, then: Any) -> None:
        super().__init__()
        self.value, self.steps, self.then = value, steps, then

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the learning rate at a step."""
        step = tf.cast(step, tf.float32)
        later = tf.maximum(step - self.steps, 0.0)
        then = self.then(later) if callable(self.then) else tf.constant(self.then)
        # The first step has a rate above 0: a rate of 0 would waste it.
        return tf.where(step < self.steps, self.value * (step + 1) / (self.steps + 1), then)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this schedule again."""
        return {"value": self.value, "steps": self.steps, "then": self.then}
