"""Let Keras callbacks work where several processes train: files are the chief's alone."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.generations import is_keras_2, keras_of
from tfdist.loop.state import optimizer_variables, take_from_chief

__all__ = ["count", "count_anew", "follow_chief", "is_chief", "make_callbacks"]

# Keras 3's callbacks write the same path from every worker. Keras 2's look at the strategy and write to a
# temporary place on all but the chief, so that all take part in reading variables; but for CSVLogger.
_WRITERS = {2: ("CSVLogger",), 3: ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "TensorBoard")}


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Say whether this process is the one that writes files."""
    return bool(strategy.extended.should_checkpoint)


def make_callbacks(
    callbacks: Sequence[Any],
    model: Any,
    strategy: tf.distribute.Strategy,
    *,
    verbose: int,
    epochs: int,
    steps: int | None,
) -> Any:
    """Make the list of callbacks that Keras calls, on all but the chief without those that write files."""
    keras = keras_of(model)
    for each in callbacks if is_keras_2(model) else ():
        if isinstance(each, keras.callbacks.BackupAndRestore):
            # Keras 2 lists the strategies that it was tried with, which are not all.
            each._supported_strategies = (tf.distribute.Strategy,)
    if not is_chief(strategy):
        names = _WRITERS[2 if is_keras_2(model) else 3]
        kinds = tuple(getattr(keras.callbacks, name) for name in names)
        callbacks = [each for each in callbacks if not isinstance(each, kinds)]
        verbose = 0
    return keras.callbacks.CallbackList(
        list(callbacks),
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )


def follow_chief(
    callbacks: Sequence[Any],
    model: Any,
    strategy: tf.distribute.Strategy,
    *,
    initial_epoch: int,
    steps: int | None,
) -> int:
    """Give the epoch to begin with; take it, and all variables if it may have restored them, from the chief.

    Only the chief's disk is sure to hold the backup, and workers that begin with different epochs would wait
    for each other for ever.
    """
    restorers = [each for each in callbacks if isinstance(each, keras_of(model).callbacks.BackupAndRestore)]
    begun = initial_epoch
    if is_keras_2(model):
        if restorers:
            _make_slots(model, strategy)
        for each in restorers:
            # The batch within the epoch is of no use: the data cannot be begun in their middle.
            begun, _ = each._training_state.maybe_load_initial_counters_from_ckpt(steps, begun, "train")
    elif restorers:
        begun = getattr(model, "_initial_epoch", None) or begun
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return int(begun)
    chief = is_chief(strategy)
    begun, restores = take_from_chief(strategy, [int(begun), len(restorers)], is_chief=chief)
    if restores:
        variables = _variables(model)
        # The local copies: to read one of Keras 2's moving averages would be to average over all workers.
        mine = [strategy.experimental_local_results(each)[0] for each in variables]
        values = take_from_chief(strategy, [tf.convert_to_tensor(each) for each in mine], is_chief=chief)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return int(begun)


def _make_slots(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Let a Keras 2 optimizer make its slots, which take their values from the backup as they are made."""
    make = getattr(model.optimizer, "build", None) or model.optimizer._create_all_weights
    with strategy.scope():
        make(model.trainable_variables)


def _variables(model: Any) -> list[Any]:
    both = (*model.variables, *optimizer_variables(model.optimizer))
    return list({id(each): each for each in both}.values())


def count_anew(model: Any, phase: str) -> None:
    """Begin to count the batches of a phase: train or test."""
    if is_keras_2(model):
        getattr(model, f"_{phase}_counter").assign(0)


def count(model: Any, phase: str, ran: int) -> None:
    """Count batches where Keras 2's TensorBoard and BackupAndRestore look for the number."""
    if is_keras_2(model):
        getattr(model, f"_{phase}_counter").assign_add(ran)
