"""Let Keras callbacks work where several processes train: files are the chief's alone."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.generations import is_keras_2, keras_of

__all__ = ["follow_chief", "is_chief", "make_callbacks"]

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
    callbacks: Sequence[Any], model: Any, strategy: tf.distribute.Strategy, initial_epoch: int
) -> int:
    """Give the epoch to begin with; take it and all variables from the chief if it may have restored them.

    Only the chief's disk is sure to hold the backup, and workers that begin with different epochs would wait
    for each other for ever.
    """
    begun = getattr(model, "_initial_epoch", None) or initial_epoch
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    restorers = [each for each in callbacks if isinstance(each, keras_of(model).callbacks.BackupAndRestore)]
    if is_keras_2(model):
        for each in restorers:
            begun = max(begun, each._training_state.maybe_load_initial_epoch_from_ckpt(begun, "train"))
        return begun
    if not several or not restorers:
        return begun
    variables = [*model.variables, *model.optimizer.variables]
    weight = 1.0 if is_chief(strategy) else 0.0

    def chiefs(value: Any) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        first = tf.cast(context.replica_id_in_sync_group == 0, tf.float64) * weight
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(value, tf.float64) * first)

    run = tf.function(lambda value: strategy.run(chiefs, args=(value,)), autograph=False)
    for variable in variables:
        found = strategy.experimental_local_results(run(tf.convert_to_tensor(variable)))[0]
        variable.assign(tf.cast(found, variable.dtype))
    epoch = strategy.experimental_local_results(run(tf.constant(begun)))[0]
    return int(epoch)
