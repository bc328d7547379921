"""Train a compiled Keras model as Keras's `fit` does, on every strategy."""

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from tfdist.coordination.stall_watch import BETWEEN_STEPS, doing
from tfdist.launcher.record_events import events_to_file
from tfdist.training.arguments import (
    callbacks_of,
    limited,
    refuse_unknown,
    strategy_of,
    validation_epochs,
    verbosity,
    whole_number,
    without_queue_arguments,
)
from tfdist.training.checkpoints.checkpoint_callback import apart
from tfdist.training.checkpoints.fit_checkpoints import open_checkpoints
from tfdist.training.epoch_batches import EpochBatches, FitSchedule
from tfdist.training.error_messages.lost_task_errors import public_call
from tfdist.training.fit_epochs import FitEpochs
from tfdist.training.keras.callbacks import make_callbacks, reset_batch_count, trainable_as_compiled
from tfdist.training.keras.datasets_from_inputs import made_data, random_state_kept, split, validation_parts
from tfdist.training.keras.kept_traces import traces_kept
from tfdist.training.keras.losses_and_metrics.metrics_of_callbacks import metrics_read_in_this_process
from tfdist.training.keras.py_dataset_hooks import epoch_hooks, hook_after_batches
from tfdist.training.keras.py_dataset_threads import threads_of_data_ended
from tfdist.training.model_session import Session
from tfdist.training.run_batches import first_batches


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Collection[int] = 1,
    *,
    repeat: bool = False,
    strategy: tf.distribute.Strategy | None = None,
    **unknown: Any,
) -> Any:
    """Train a compiled Keras model, made in `strategy.scope()`, and return Keras's History.

    Without `steps_per_epoch` an epoch is the data, each example once. With it, an epoch continues in the data
    where the last epoch ended. As in Keras, the epoch ends with a warning if the data end first.

    Args:
        model: The compiled model, of Keras 3 or 2.
        x: A data set of global batches; a function that takes a `tf.distribute.InputContext` and returns the
            replica batches of that input pipeline's own part of the data; or anything else that Keras's `fit`
            takes: arrays, tensors, structures of them, a PyDataset, a generator.
        y: Targets, if x are arrays.
        batch_size: Examples in a global batch of arrays; 32 if None.
        epochs: The final epoch, counted from 1, as in Keras.
        verbose: Keras's verbosity: 0, 1, 2 or auto. Only the chief shows progress.
        callbacks: Keras callbacks, or one. Only the chief writes their files. `tfdist.CheckpointAndResume`
            makes the run continue, after a restart, at the step of its last checkpoint.
        validation_split: The fraction at the end of the arrays to evaluate on.
        validation_data: Data to evaluate on after epochs: as x, or (x, y) or (x, y, sample_weight) of arrays.
        shuffle: Whether to shuffle arrays before each epoch, in the same order on all workers.
        class_weight: The weight of an example's loss, by its class.
        sample_weight: The weight of each example's loss, if x are arrays.
        initial_epoch: The index of the first epoch, counted from 0.
        steps_per_epoch: Global batches in an epoch; under parameter_server, batches of any worker.
        validation_steps: The number of batches to evaluate on; all if None.
        validation_batch_size: Examples in a global batch of validation arrays; batch_size if None.
        validation_freq: The number of epochs between evaluations, or the epochs to evaluate after, counted
            from 1.
        repeat: Whether to begin the data again each time they end within steps_per_epoch.
        strategy: The strategy; if None, the one that the model was made under.
        unknown: Arguments that do not exist, which are refused.
    """
    refuse_unknown(fit, without_queue_arguments(model, unknown))
    strategy = strategy_of(model, strategy)
    steps_per_epoch = limited(model, "steps_per_epoch", steps_per_epoch)
    validation_steps = limited(model, "steps_per_epoch", validation_steps)
    callbacks, option = apart(callbacks_of(callbacks))
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split(model, (x, y, sample_weight), validation_split)
    hooks, after_batches = epoch_hooks(model, x), hook_after_batches(model, x)
    with public_call("fit", strategy), open_checkpoints(option, model, strategy, callbacks) as checkpoints:
        checkpoints.check_order(x, shuffle=shuffle)
        options: Any = {"class_weight": class_weight, "shuffle": shuffle, "seed": checkpoints.seed}
        options |= {"batch_size": batch_size, "steps": steps_per_epoch}
        x = made_data(model, strategy, x, y, sample_weight, **options)
        if validation_data is not None:
            parts = validation_parts(validation_data)
            hooks += epoch_hooks(model, parts[0], "test")
            options = {"batch_size": validation_batch_size or batch_size, "steps": validation_steps}
            with random_state_kept():
                validation_data = made_data(model, strategy, *parts, **options)
            if validation_steps is not None:
                count = whole_number("validation_steps", validation_steps, 1)
                validation_data = first_batches(validation_data, model, strategy, count)
        schedule = FitSchedule(
            whole_number("epochs", limited(model, "epochs", epochs), 0),
            whole_number("initial_epoch", initial_epoch, 0),
            EpochBatches.of(x, model, strategy, steps_per_epoch, "steps_per_epoch", repeats=repeat),
            EpochBatches.of(validation_data, model, strategy, validation_steps, "validation_steps"),
            validation_epochs(validation_freq),
        )
        shown = verbosity(verbose)
        x = checkpoints.checked(x, validation_data)
        trainable = trainable_as_compiled(model)
        with events_to_file(), threads_of_data_ended(), trainable, traces_kept(model) as traces:
            steps = ["train_step"] if validation_data is None else ["train_step", "test_step"]
            options = {"traces": traces, "steps": steps, "is_saved": checkpoints.are_saved}
            session = Session(model, strategy, x, validation_data=validation_data, **options)
            session.check_ends(
                steps="" if steps_per_epoch else "steps_per_epoch",
                test_steps="" if validation_data is None or validation_steps else "validation_steps",
            )
            training = session.training()
            testing = None if validation_data is None else session.testing()
            checkpoints.attach(session, training, testing, schedule, batch_size)
            lengths: Any = {"epochs": schedule.epochs, "steps": schedule.batches.expected}
            options = {"verbose": shown, "has_history": True, **lengths}
            calls = make_callbacks([*callbacks, *hooks], model, strategy, **options)
            model.stop_training = False
            reset_batch_count(model, "train")
            with metrics_read_in_this_process(model, strategy):
                begun = checkpoints.begin(calls, **lengths, initial_epoch=schedule.initial_epoch)
                run = FitEpochs(
                    session, training, testing, model, schedule, calls, callbacks, checkpoints, after_batches
                )
                with checkpoints.deferring(), doing(BETWEEN_STEPS):
                    logs = run.run(begun)
                    if schedule.epochs:
                        session.finish()
                    calls.on_train_end(logs)
    return model.history
