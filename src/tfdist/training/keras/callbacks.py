"""Run Keras callbacks where several processes train: only the chief writes files."""

import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, is_keras_2, keras_of
from tfdist._utils.keras_private import (
    add_slots,
    allow_any_strategy,
    batch_counter,
    epoch_to_resume,
    epoch_to_resume_keras_2,
    is_of_keras,
    list_of_callbacks,
    trainable_as_compiled_keras_2,
)
from tfdist._utils.nested_optimizers import optimizer_variables
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.training.keras.variables_of_run import optimizers_beside
from tfdist.training.workers.exchange_numbers import take_from_chief

# Keras 3's callbacks write the same path on every worker. Keras 2's callbacks write to a temporary folder on
# workers other than the chief, so that all take part in reading variables. Its CSVLogger is the exception.
_WRITERS = {
    2: ("CSVLogger", "RemoteMonitor"),
    3: (
        "BackupAndRestore",
        "CSVLogger",
        "ModelCheckpoint",
        "OrbaxCheckpoint",
        "RemoteMonitor",
        "TensorBoard",
    ),
}

_CHIEF_ALONE = (
    "callback %s runs on the chief alone, as it derives from %s, which writes files. If it changes the model,"
    " or evaluates or predicts, do that in a callback that derives from keras.callbacks.Callback"
)
_log = logging.getLogger("tfdist")


def make_callbacks(
    callbacks: Sequence[Any],
    model: Any,
    strategy: tf.distribute.Strategy,
    *,
    verbose: int,
    epochs: int = 1,
    steps: int | None,
    has_history: bool = False,
) -> Any:
    """Return Keras's CallbackList; on workers other than the chief, without callbacks that write files."""
    keras = keras_of(model)
    for callback in callbacks if is_keras_2(model) else ():
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            allow_any_strategy(callback)
    names = _WRITERS[2 if is_keras_2(model) else 3]
    kinds = tuple(getattr(keras.callbacks, name) for name in names if hasattr(keras.callbacks, name))
    if not is_chief_of(strategy):
        callbacks = [callback for callback in callbacks if not isinstance(callback, kinds)]
        verbose = 0
    elif has_mirrored_workers(strategy):
        _warn_of_chief_alone(callbacks, kinds)
    made = list_of_callbacks(
        keras,
        callbacks,
        add_history=has_history,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )
    return _WatchedCallbacks(made)


def _warn_of_chief_alone(callbacks: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """Log a warning of each class of the user's own that derives from one of Keras that writes files."""
    for kind in dict.fromkeys(map(type, callbacks)):
        if issubclass(kind, kinds) and not is_of_keras(kind):
            writer = next(one.__name__ for one in kind.__mro__ if one in kinds)
            _warn_once(kind.__name__, writer)


@functools.cache
def _warn_once(kind: str, writer: str) -> None:
    _log.warning(_CHIEF_ALONE, kind, writer)


class _WatchedCallbacks:
    """Keras's CallbackList, whose calls are noted as what this process is doing."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._calls, name)
        if not name.startswith("on_"):
            return found
        what = f"in the {name} of its callbacks"
        activity = Activity(what, "at_each_step") if "batch" in name else Activity(what)

        def call(*args: Any, **arguments: Any) -> Any:
            with doing(activity):
                return found(*args, **arguments)

        setattr(self, name, call)  # the next time, it is found there
        return call


def follow_chief(
    callbacks: Sequence[Any],
    model: Any,
    strategy: tf.distribute.Strategy,
    *,
    initial_epoch: int,
    steps: int | None,
) -> int:
    """Return the chief's first epoch; if a backup may have been restored, copy the chief's variables too.

    Only the chief's disk is sure to hold the backup. Workers that begin with different epochs would wait for
    each other for ever.
    """
    restorers = [
        callback for callback in callbacks if isinstance(callback, keras_of(model).callbacks.BackupAndRestore)
    ]
    begun = initial_epoch
    if is_keras_2(model) and restorers:
        with strategy.scope():  # the slots get their values from the backup when they are created
            add_slots(model.optimizer, model.trainable_variables)
        for backup in restorers:
            begun = epoch_to_resume_keras_2(backup, steps, begun)
    elif restorers:
        begun = epoch_to_resume(model) or begun
    if not has_mirrored_workers(strategy):
        return int(begun)
    chief = is_chief_of(strategy)
    begun, restores = take_from_chief(strategy, [int(begun), len(restorers)], is_chief=chief)
    if restores:
        variables = restored_variables(model)
        # Local copies: reading a moving average of Keras 2 would average over all workers.
        mine = [strategy.experimental_local_results(variable)[0] for variable in variables]
        values = take_from_chief(strategy, [tf.convert_to_tensor(value) for value in mine], is_chief=chief)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return int(begun)


def restored_variables(model: Any) -> list[Any]:
    """Return the variables that Keras's backup may restore: of the model, and of all optimizers within it."""
    others = [found for found in optimizers_beside(model) if found.optimizer.built]
    optimizers = [model.optimizer, *(found.optimizer for found in others)]
    all_of_them = [*all_variables(model), *(each for one in optimizers for each in optimizer_variables(one))]
    return list({id(variable): variable for variable in all_of_them}.values())


def trainable_as_compiled(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which Keras 2 trains what was trainable when the model was compiled."""
    if not is_keras_2(model):
        return contextlib.nullcontext()
    return trainable_as_compiled_keras_2(keras_of(model), model)


def reset_batch_count(model: Any, phase: str) -> None:
    """Reset Keras 2's batch counter of a phase: train or test."""
    if is_keras_2(model):
        batch_counter(model, phase).assign(0)


def count(model: Any, phase: str, ran: int) -> None:
    """Add to the batch counter that Keras 2's TensorBoard and BackupAndRestore read."""
    if is_keras_2(model):
        batch_counter(model, phase).assign_add(ran)
