"""Check and make the callbacks that a config names."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.import_by_name import import_object
from tfdist._utils.shared_config_types import Named, name_and_arguments
from tfdist.errors import ConfigError, shown
from tfdist.trainer.config import Config
from tfdist.trainer.keras_names import call_named, check_arguments, find_class, snake_case
from tfdist.training.arguments import callbacks_of

_NOT_ALLOWED = (
    "BackupAndRestore",
    "BaseLogger",
    "CallbackList",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "OrbaxCheckpoint",
    "ProgbarLogger",
)
_BACKUPS = ("backup_and_restore", "orbax_checkpoint")


def check_named_callbacks(config: Config) -> None:
    """Check the callbacks that a config names; import a user's own, whose call may begin a tracker's run.

    Raises:
        ConfigError: There is no such callback, or it does not accept its arguments.
    """
    for value in config.train.callbacks:
        name, arguments = name_and_arguments(value)
        if ":" not in name:
            made = _make(value)
            _refuse_late_ones(config, made)
            if config.train.schedule == "cosine" or config.train.warmup:
                refuse_setters_of_rate(made)
        elif callable(found := import_object(name, "train.callbacks")):
            check_arguments(f"train.callbacks: {name}", found, arguments)


def named_callbacks(config: Config) -> list[Any]:
    """Return the callbacks that a config names.

    Raises:
        ConfigError: There is no such callback, it does not accept its arguments, or it waits for evaluations
            that an evaluator task makes.
    """
    callbacks = [callback for value in config.train.callbacks for callback in _make(value)]
    _refuse_late_ones(config, callbacks)
    return callbacks


def _refuse_late_ones(config: Config, callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that wait for evaluations that an evaluator task makes."""
    for callback in callbacks if config.cluster.evaluator else ():
        monitor, name = str(getattr(callback, "monitor", "")), type(callback).__name__
        if monitor.startswith("val_") and getattr(callback, "save_best_only", True):
            problem = f"monitors {monitor}, which the evaluator task computes after training has continued"
            remedy = f"Set monitor: {monitor.removeprefix('val_')}, or leave the evaluator out"
            raise ConfigError(f"train.callbacks: {name}", problem, remedy=remedy)


def refuse_setters_of_rate(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that set the learning rate, for an optimizer that takes it from a schedule."""
    setters = (tf.keras.callbacks.ReduceLROnPlateau, tf.keras.callbacks.LearningRateScheduler)
    for callback in callbacks:
        if isinstance(callback, setters):
            problem = "sets the learning rate, but that is a schedule, which Keras does not let it change"
            remedy = "Leave train.schedule and train.warmup out, or leave out the callback"
            raise ConfigError(f"train.callbacks: {type(callback).__name__}", problem, remedy=remedy)


def _make(value: Named) -> list[Any]:
    name, arguments = name_and_arguments(value)
    place = f"train.callbacks: {name}"
    if ":" not in name:
        if snake_case(name) in _BACKUPS:
            problem = "is not supported: tfdist saves checkpoints of its own, and resumes from them"
            raise ConfigError(place, problem, remedy="Leave it out; see checkpoint.every")
        base = tf.keras.callbacks.Callback
        kind = find_class("train.callbacks", name, tf.keras.callbacks, base, without=_NOT_ALLOWED)
        return [call_named(place, kind, arguments)]
    made = import_object(name, "train.callbacks")
    if callable(made) and not isinstance(made, tf.keras.callbacks.Callback):
        made = call_named(place, made, arguments)
    if made is None or not (isinstance(made, (list, tuple)) or hasattr(made, "set_model")):
        raise ConfigError(place, expected="a callback of Keras or a list of them", received=shown(made))
    return callbacks_of(made)
