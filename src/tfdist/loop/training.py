"""Own the cadence of training: epochs, callbacks, validation and logs."""

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError, DataError, shown
from tfdist.loop.callbacks import count_anew, follow_chief, make_callbacks
from tfdist.loop.epochs import run_batches
from tfdist.loop.evaluation import run_tests
from tfdist.loop.feeding import Data, known_steps
from tfdist.loop.lost import naming_lost_tasks
from tfdist.loop.session import Session
from tfdist.loop.stopping import Stopping

__all__ = ["fit"]


def fit(
    model: Any,
    train: Data,
    *,
    strategy: tf.distribute.Strategy | None = None,
    epochs: int = 1,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation: Data | None = None,
    validation_steps: int | None = None,
    validation_freq: int = 1,
    callbacks: Sequence[Any] = (),
    verbose: int | str = "auto",
) -> Any:
    """Train a compiled Keras model, made in `strategy.scope()`, and give Keras's History.

    Without `steps_per_epoch` an epoch is the data, each example once. With it, an epoch goes on with the data
    where the last one left them, and begins them anew as often as it takes.

    Args:
        model: The compiled model, of Keras 3 or 2.
        train: A data set of global batches; or a function that makes, for a `tf.distribute.InputContext`, the
            replica batches of that input pipeline's own part of the data.
        strategy: The strategy; the current one where None.
        epochs: The epoch to end before, as in Keras.
        initial_epoch: The epoch to begin with.
        steps_per_epoch: Global batches in an epoch; under parameter_server, batches of any worker.
        validation: Data to evaluate on after epochs.
        validation_steps: How many batches of them; all where None.
        validation_freq: Evaluate after each so many epochs.
        callbacks: Keras callbacks; those that write files do so on the chief.
        verbose: Keras's progress: 0, 1, 2 or auto. Shown by the chief.
    """
    strategy = strategy or tf.distribute.get_strategy()
    _check_counts(epochs, initial_epoch, steps_per_epoch, validation_steps, validation_freq)
    steps = steps_per_epoch if steps_per_epoch is not None else known_steps(train, "steps_per_epoch")
    test_steps = validation_steps
    if validation is not None and validation_steps is None:
        test_steps = known_steps(validation, "validation_steps")
    with naming_lost_tasks("fit", strategy):
        session = Session(model, strategy, train)
        training = session.training()
        testing = None if validation is None else session.testing(validation)
        calls = make_callbacks(
            callbacks,
            model,
            strategy,
            verbose=1 if verbose == "auto" else int(verbose),
            epochs=epochs,
            steps=steps,
        )
        model.stop_training = False
        count_anew(model, "train")
        calls.on_train_begin()
        initial_epoch = follow_chief(callbacks, model, strategy, initial_epoch=initial_epoch, steps=steps)
        stopping = Stopping(callbacks, model, strategy)
        logs: dict[str, Any] = {}
        for epoch in range(initial_epoch, epochs):
            calls.on_epoch_begin(epoch)
            batches = run_batches(
                "train",
                training,
                session.train_step,
                model,
                steps=steps_per_epoch,
                expected=steps,
                calls=calls,
            )
            session.train_step.reset()
            logs = _run_epoch(batches, stopping)
            session.end_epoch()
            if testing is not None and (epoch + 1) % validation_freq == 0:
                found = run_tests(session, testing, model, validation_steps, calls, expected=test_steps)
                logs.update({f"val_{name}": value for name, value in found.items()})
            calls.on_epoch_end(epoch, logs)
            if stopping.after_epoch():
                break
        session.finish()
        calls.on_train_end(logs)
    return model.history


def _run_epoch(
    batches: Generator[tuple[int, dict[str, Any]], None, None], stopping: Stopping
) -> dict[str, Any]:
    """Train for an epoch and give the metrics' results."""
    logs: dict[str, Any] = {}
    done = 0
    with contextlib.closing(batches):
        for done, logs in batches:  # noqa: B007
            if stopping.after_execution():
                break
    if not done:
        raise DataError("the training data", "hold no batch", remedy="Look at batch() and its drop_remainder")
    return {name: float(value) for name, value in logs.items()}


def _check_counts(
    epochs: int, initial_epoch: int, steps: int | None, validation_steps: int | None, validation_freq: int
) -> None:
    for name, value, least in (
        ("epochs", epochs, 0),
        ("initial_epoch", initial_epoch, 0),
        ("steps_per_epoch", steps, 1),
        ("validation_steps", validation_steps, 1),
        ("validation_freq", validation_freq, 1),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigError(name, expected=f"a whole number of at least {least}", received=shown(value))
