"""Run the epochs of a call of `fit`: training, evaluation, callbacks, checkpoints and profiles."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist.errors import DataError
from tfdist.launcher.record_events import VARIABLE as EVENTS
from tfdist.profiling.parse_step_range import parse_steps
from tfdist.profiling.profiled_steps import ProfiledSteps
from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.training.checkpoints.fit_hooks import FitHooks
from tfdist.training.epoch_batches import FitSchedule
from tfdist.training.evaluate import run_tests
from tfdist.training.keras.model_facts import has_own
from tfdist.training.model_session import Phase, Session
from tfdist.training.reports.logs import as_logs
from tfdist.training.reports.report_progress_to_launcher import FitReports
from tfdist.training.run_batches import run_batches, steps_per_execution
from tfdist.training.workers.stop_together import Stopping

_PROFILE = "TFDIST_PROFILE"


class FitEpochs:
    """The epochs of a call of `fit`."""

    def __init__(
        self,
        session: Session,
        training: Phase,
        testing: Phase | None,
        model: Any,
        schedule: FitSchedule,
        calls: Any,
        callbacks: Sequence[Any],
        checkpoints: FitHooks,
        after_batches: Callable[[], None],
    ) -> None:
        self._training, self._testing, self._model = training, testing, model
        self._schedule, self._calls, self._checkpoints = schedule, calls, checkpoints
        self._after_batches = after_batches
        self._stopping = Stopping(callbacks, model, session.strategy)
        self._reports = FitReports(
            model, session.strategy, epochs=schedule.epochs, steps=schedule.batches.expected
        )
        self._profiled, self._steps = _profiled_steps(session.strategy), 0
        self._per_call = steps_per_execution(model)
        self._leave: Callable[[], bool] | None = None
        self._is_tested_for_own = False
        if testing is not None:
            stopping = Stopping(callbacks, model, session.strategy, "evaluating")
            self._is_tested_for_own = stopping.is_within_epochs

            def leaves() -> bool:
                # A resumed run needs what a test_step of the model's own, or a layer, may have changed here.
                writes = has_own(model, "test_step") or testing.step.writes_in_tests
                return stopping.after_execution() or (not writes and checkpoints.leaves())

            self._leave = leaves

    def run(self, begun: int) -> dict[str, Any]:
        """Train, and evaluate when due, until the last epoch or until a callback stops training."""
        logs = self._checkpoints.logs
        self._reports.begin(begun, self._checkpoints.done_of_first_epoch)
        for epoch in range(begun, self._schedule.epochs):
            self._calls.on_epoch_begin(epoch)
            logs = self._train(epoch)
            if not self._model.stop_training:  # Keras leaves the data as they are then
                self._after_batches()
            self._training.step.end_epoch()
            if self._testing is not None and self._schedule.validates(epoch):
                self._reports.phase("evaluating")
                logs.update({f"val_{name}": value for name, value in self._test(self._testing).items()})
            self._reports.after_evaluation(epoch, logs)
            self._calls.on_epoch_end(epoch, logs)
            stops = self._stopping.after_epoch()
            is_last = stops or epoch + 1 == self._schedule.epochs
            self._checkpoints.after_epoch(logs, is_last=is_last, is_stopped=stops)
            if stops:
                break
        self._profiled.end_if_due(self._steps, is_over=True)
        self._reports.phase("after fit")
        return logs

    def _train(self, epoch: int) -> dict[str, Any]:
        """Train for an epoch, or the rest of it; return the metrics' results."""
        self._reports.phase("training")
        step = self._training.step
        part = self._checkpoints.begin_epoch(epoch)
        before = self._steps
        self._profiled.begin_if_due(before + part.done, self._per_call)
        batches = run_batches(
            "train",
            self._training,
            self._model,
            self._schedule.batches,
            part,
            calls=self._calls,
            before=before,
            are_own=self._stopping.is_within_epochs,
        )
        with contextlib.closing(batches):
            for done, logs in batches:
                self._steps = before + done
                self._profiled.end_if_due(self._steps)
                self._profiled.begin_if_due(self._steps, self._per_call)
                self._reports.after_steps(epoch, done, logs, step.times(part.totals))
                if self._stopping.after_execution():
                    break
                self._checkpoints.after_execution()
        self._checkpoints.after_batches()
        if not part.done:
            raise DataError(
                "the training data", "contain no batch", remedy="Check batch() and its drop_remainder"
            )
        results = as_logs(part.logs, are_sorted=not is_keras_2(self._model))
        self._reports.after_epoch(epoch, part.done, results, step.times(part.totals))
        return results

    def _test(self, testing: Phase) -> dict[str, float]:
        """Evaluate, and return the metrics' results."""
        results = run_tests(
            testing,
            self._model,
            self._schedule.test_batches,
            self._calls,
            leave=self._leave,
            are_own=self._is_tested_for_own,
        )
        self._checkpoints.after_tests()
        return results


def _profiled_steps(strategy: tf.distribute.Strategy) -> ProfiledSteps:
    """Return the steps to record, which TFDIST_PROFILE names, such as 20:30.

    The timeline goes to the launch's folder, or else to the current one.

    Raises:
        ConfigError: The variable is no range of steps.
    """
    text = os.environ.get(_PROFILE)
    steps = parse_steps(text, _PROFILE) if text else None
    events = os.environ.get(EVENTS)  # which the launcher sets for the chief
    folder = Path(events).parent if events else Path.cwd()
    return ProfiledSteps(steps, strategy, folder if is_chief_of(strategy) else None)
