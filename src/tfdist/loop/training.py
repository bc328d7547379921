"""Own the cadence of training: epochs, callbacks, validation and logs."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError, DataError, TaskLost, shown
from tfdist.loop.callbacks import follow_chief, make_callbacks
from tfdist.loop.evaluation import run_tests, steps_per_execution
from tfdist.loop.feeding import Data, known_steps
from tfdist.loop.session import Runner, Session

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
    with _lost_tasks_named():
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
        calls.on_train_begin()
        logs: dict[str, Any] = {}
        for epoch in range(follow_chief(callbacks, model, strategy, initial_epoch), epochs):
            calls.on_epoch_begin(epoch)
            logs = _run_epoch(session, training, calls, model, steps_per_epoch)
            session.end_epoch()
            if testing is not None and (epoch + 1) % validation_freq == 0:
                found = run_tests(session, testing, model, validation_steps, calls)
                logs.update({f"val_{name}": value for name, value in found.items()})
            calls.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        session.finish()
        calls.on_train_end(logs)
    return model.history


def _run_epoch(
    session: Session, training: Runner, calls: Any, model: Any, steps: int | None
) -> dict[str, Any]:
    """Train for an epoch and give the metrics' results."""
    session.step.reset()
    logs: dict[str, Any] = {}
    done = 0
    running = training.epoch(steps, steps_per_execution(model), session.step.no_totals())
    with contextlib.closing(running):
        for ran, totals in running:
            calls.on_train_batch_begin(done)
            logs = session.step.results(totals)
            done += ran
            calls.on_train_batch_end(done - 1, logs)
            if model.stop_training:
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


@contextlib.contextmanager
def _lost_tasks_named() -> Iterator[None]:
    """Report a task that is gone as what it is, in one line."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        first = str(error).strip().partition("\n")[0]
        remedy = "Its own log says why; start the cluster again, from the last checkpoint"
        raise TaskLost("fit", f"a task of the cluster is gone: {first[:200]}", remedy=remedy) from error
