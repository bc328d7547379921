"""Run training: epochs, callbacks, validation and logs."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.coordination.stall_watch import BETWEEN_STEPS, doing
from tfdist.errors import DataError
from tfdist.launcher.run_events import events_to_file
from tfdist.training.arguments import (
    callbacks_of,
    limited,
    refuse_unknown,
    strategy_of,
    validation_epochs,
    verbosity,
    whole_number,
)
from tfdist.training.checkpoint_option import apart
from tfdist.training.data import Data, known_steps
from tfdist.training.early_stop import Stopping
from tfdist.training.evaluate import run_tests
from tfdist.training.fit_checkpoints import FitCheckpoints, open_checkpoints
from tfdist.training.kept_traces import traces_kept
from tfdist.training.keras.callbacks import follow_chief, is_chief, make_callbacks, reset_batch_count
from tfdist.training.keras.datasets_from_inputs import (
    check_seeded,
    epoch_hooks,
    made_data,
    split,
    validation_parts,
)
from tfdist.training.logs import as_logs
from tfdist.training.model_checks import has_own
from tfdist.training.profiled_fit import profiled_fit
from tfdist.training.report_progress_of_fit import FitReports
from tfdist.training.run_batches import DataPosition, EpochPart, run_batches, steps_per_execution
from tfdist.training.same_call import in_call
from tfdist.training.session import Phase, Session
from tfdist.training.task_errors import naming_lost_tasks

__all__ = ["fit"]


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
    refuse_unknown("fit", unknown, _ARGUMENTS)
    strategy = strategy_of(model, strategy)
    steps_per_epoch = limited(model, "steps_per_epoch", steps_per_epoch)
    validation_steps = limited(model, "steps_per_epoch", validation_steps)
    callbacks, option = apart(callbacks_of(callbacks))
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split(model, (x, y, sample_weight), validation_split)
    hooks = epoch_hooks(model, x)
    with in_call("fit", strategy), open_checkpoints(option, model, strategy, callbacks) as checkpoints:
        if checkpoints is not None:
            check_seeded(model, x, shuffle)
        x = made_data(
            model,
            strategy,
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            seed=None if checkpoints is None else checkpoints.seed,
        )
        if validation_data is not None:
            validation_data = made_data(
                model,
                strategy,
                *validation_parts(validation_data),
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
            )
        schedule = _Schedule.of(
            x,
            limited(model, "epochs", epochs),
            initial_epoch,
            steps_per_epoch,
            validation_data,
            validation_steps,
            validation_freq,
            repeat,
            lambda data, steps: DataPosition.of(data, model, strategy, steps),
        )
        shown = verbosity(verbose)
        if checkpoints is not None:
            x = checkpoints.checked(x, validation_data)
        with events_to_file(), naming_lost_tasks("fit", strategy), traces_kept(model) as traces:
            session = Session(model, strategy, x, traces=traces, tests=validation_data is not None)
            training = session.training()
            testing = None if validation_data is None else session.testing(validation_data)
            if checkpoints is not None:
                settings = {"steps_per_epoch": schedule.steps, "batch_size": batch_size, "repeat": repeat}
                checkpoints.attach(session, training, testing, settings, schedule.position)
            calls = make_callbacks(
                [*callbacks, *hooks],
                model,
                strategy,
                verbose=shown,
                epochs=schedule.epochs,
                steps=schedule.expected,
                has_history=True,
            )
            model.stop_training = False
            reset_batch_count(model, "train")
            if checkpoints is None:
                calls.on_train_begin()
                begun = follow_chief(
                    callbacks, model, strategy, initial_epoch=schedule.initial_epoch, steps=schedule.expected
                )
            else:
                begun = checkpoints.begin(calls, schedule.epochs, schedule.initial_epoch)
            run = _Epochs(session, training, testing, model, schedule, calls, callbacks, checkpoints)
            deferring = contextlib.nullcontext() if checkpoints is None else checkpoints.deferring()
            with deferring, doing(BETWEEN_STEPS):
                logs = run.run(begun)
                session.finish()
                calls.on_train_end(logs)
    return model.history


_ARGUMENTS = tuple(inspect.signature(fit).parameters)[1:-1]


class _Schedule(NamedTuple):
    """The epochs of a call of `fit`, and how many batches each of them trains and tests on."""

    epochs: int
    initial_epoch: int
    steps: int | None
    expected: int | None
    test_steps: int | None
    test_expected: int | None
    validated: int | frozenset[int]
    repeats: bool
    position: DataPosition | None
    test_position: DataPosition | None

    @classmethod
    def of(
        cls,
        x: Data,
        epochs: Any,
        initial_epoch: Any,
        steps: Any,
        validation_data: Data | None,
        validation_steps: Any,
        validation_freq: Any,
        repeats: bool,
        begin: Callable[[Data, int | None], DataPosition | None],
    ) -> "_Schedule":
        """Check those arguments of `fit` that are counts, and return the schedule."""
        if steps is not None:
            steps = whole_number("steps_per_epoch", steps, 1)
        if validation_steps is not None:
            validation_steps = whole_number("validation_steps", validation_steps, 1)
        test_expected = validation_steps
        if validation_data is not None and validation_steps is None:
            test_expected = known_steps(validation_data, "validation_steps")
        return cls(
            whole_number("epochs", epochs, 0),
            whole_number("initial_epoch", initial_epoch, 0),
            steps,
            known_steps(x, "steps_per_epoch") if steps is None else steps,
            validation_steps,
            test_expected,
            validation_epochs(validation_freq),
            repeats,
            None if repeats else begin(x, steps),
            None if validation_data is None else begin(validation_data, validation_steps),
        )

    def validates(self, epoch: int) -> bool:
        """Return whether to evaluate after an epoch."""
        if isinstance(self.validated, int):
            return (epoch + 1) % self.validated == 0
        return epoch + 1 in self.validated


class _Epochs:
    """The epochs of a call of `fit`."""

    def __init__(
        self,
        session: Session,
        training: Phase,
        testing: Phase | None,
        model: Any,
        schedule: _Schedule,
        calls: Any,
        callbacks: Sequence[Any],
        checkpoints: FitCheckpoints | None,
    ) -> None:
        self._training, self._testing, self._model = training, testing, model
        self._schedule, self._calls, self._checkpoints = schedule, calls, checkpoints
        self._stopping = Stopping(callbacks, model, session.strategy)
        self._reports = FitReports(
            is_chief=is_chief(session.strategy), epochs=schedule.epochs, steps=schedule.expected
        )
        self._profiled, self._steps = profiled_fit(session.strategy), 0
        self._per_call = steps_per_execution(model)
        self._leave: Callable[[], bool] | None = None
        if testing is not None:
            self._leave = Stopping(callbacks, model, session.strategy, "evaluating").after_execution
            # A test_step of the model's own may change what a resumed run needs.
            if checkpoints is not None and not has_own(model, "test_step"):
                stops, leaves = self._leave, checkpoints.leaves
                self._leave = lambda: stops() or leaves()

    def run(self, begun: int) -> dict[str, Any]:
        """Train, and evaluate when due, until the last epoch or until a callback stops training."""
        logs: dict[str, Any] = {} if self._checkpoints is None else self._checkpoints.logs
        for epoch in range(begun, self._schedule.epochs):
            self._calls.on_epoch_begin(epoch)
            done, logs = self._train(epoch)
            self._training.step.end_epoch()
            if self._testing is not None and self._schedule.validates(epoch):
                logs.update({f"val_{name}": value for name, value in self._test(self._testing).items()})
            self._reports.after_epoch(epoch, done, logs)
            self._calls.on_epoch_end(epoch, logs)
            stops = self._stopping.after_epoch()
            if self._checkpoints is not None:
                is_last = stops or epoch + 1 == self._schedule.epochs
                self._checkpoints.after_epoch(logs, is_last=is_last, is_stopped=stops)
            if stops:
                break
        self._profiled.end_if_due(self._steps, is_over=True)
        return logs

    def _train(self, epoch: int) -> tuple[int, dict[str, Any]]:
        """Train for an epoch, or the rest of it; return the number of its steps, and the metrics' results."""
        part = EpochPart() if self._checkpoints is None else self._checkpoints.begin_epoch(epoch)
        before = self._steps
        self._profiled.begin_if_due(before + part.done, self._per_call)
        batches = run_batches(
            "train",
            self._training,
            self._model,
            steps=self._schedule.steps,
            expected=self._schedule.expected,
            calls=self._calls,
            repeats=self._schedule.repeats,
            position=self._schedule.position,
            part=part,
            before=before,
        )
        with contextlib.closing(batches):
            for done, logs in batches:
                self._steps = before + done
                self._profiled.end_if_due(self._steps)
                self._profiled.begin_if_due(self._steps, self._per_call)
                self._reports.after_steps(epoch, done, logs)
                if self._stopping.after_execution():
                    break
                if self._checkpoints is not None:
                    self._checkpoints.after_execution()
        if self._checkpoints is not None:
            self._checkpoints.after_batches()
        if not part.done:
            raise DataError(
                "the training data", "contain no batch", remedy="Check batch() and its drop_remainder"
            )
        return part.done, as_logs(part.logs)

    def _test(self, testing: Phase) -> dict[str, float]:
        """Evaluate, and return the metrics' results."""
        results = run_tests(
            testing,
            self._model,
            self._schedule.test_steps,
            self._calls,
            expected=self._schedule.test_expected,
            leave=self._leave,
            position=copy.copy(self._schedule.test_position),
        )
        if self._checkpoints is not None:
            self._checkpoints.after_tests()
        return results
