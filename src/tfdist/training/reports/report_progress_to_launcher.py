"""Report the progress of `fit` to the launcher or engine that runs the script, and record its events."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import EpochEnded, PhaseBegun, Progressed, accuracy_of
from tfdist.strategies.current_cluster_and_strategy import is_chief_of, made_with
from tfdist.training.reports.logs import as_scalars
from tfdist.training.reports.software_and_devices import record_start, versions
from tfdist.training.reports.speed_window import SECONDS_BETWEEN_REPORTS, SpeedWindow, TrainingClock
from tfdist.training.reports.task_speed import record_task_speed
from tfdist.training.runners.replica_stats import EXAMPLES


class FitReports:
    """The reports of one call of `fit` by the chief; other tasks report nothing.

    A call between two reports reads the clock, and does nothing else.
    """

    def __init__(
        self, model: Any, strategy: tf.distribute.Strategy, *, epochs: int, steps: int | None
    ) -> None:
        """Prepare the reports of so many epochs, each of a number of steps if that is known."""
        self._model, self._strategy = model, strategy
        self._cluster, self._name = made_with(strategy)
        self._is_chief, self._epochs, self._steps = is_chief_of(strategy), epochs, steps
        self._reported_at = time.monotonic()
        self._speed, self._phase = _Speed(), ""

    def begin(self, epoch: int, done: int) -> None:
        """Record the start, with the first epoch; of one that is resumed, so many steps are done."""
        if not self._is_chief:
            return
        model, steps = self._model, self._steps or 0
        step = epoch * steps + done
        record_start(
            self._cluster,
            self._strategy,
            strategy=self._name,
            model=model.name,
            parameters=model.count_params() if model.built else 0,
            step=step,
            steps=self._epochs * steps,
            steps_lost=None if step else 0,
            versions=versions(keras_of(model)),
        )

    def phase(self, name: str) -> None:
        """Record that the chief begins with something else."""
        if self._is_chief and name != self._phase:
            self._phase = name
            self._speed.clock.set_training(name == "training")
            self._reported_at = time.monotonic()  # shares of the first step alone would say nothing
            record(PhaseBegun(phase=name))

    def after_steps(self, epoch: int, done: int, logs: Mapping[str, Any], times: Any) -> None:
        """Report the steps of an epoch that are done, at most twice a second; `times` is their table."""
        if not self._is_chief:
            return
        self._speed.begin(times)
        if time.monotonic() - self._reported_at < SECONDS_BETWEEN_REPORTS:
            return
        total = None if self._steps is None else self._epochs * self._steps
        before = 0 if self._steps is None else epoch * self._steps
        self._report(before + done, total, logs, times)

    def after_epoch(self, epoch: int, done: int, logs: Mapping[str, Any], times: Any) -> None:
        """Report the results of the training of an epoch, in which so many steps were done."""
        if not self._is_chief:
            return
        self._steps = self._steps or done
        self._report(epoch * self._steps + min(done, self._steps), self._epochs * self._steps, logs, times)
        self._speed.end_epoch(times)

    def after_evaluation(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Record all results of an epoch."""
        if self._is_chief:
            record(EpochEnded(epoch=epoch, epochs=self._epochs, logs=dict(as_scalars(logs))))

    def _report(self, step: int, steps: int | None, logs: Mapping[str, Any], times: Any) -> None:
        is_due = time.monotonic() - self._reported_at >= SECONDS_BETWEEN_REPORTS
        results = {"loss": logs.get("loss"), "accuracy": accuracy_of(logs)}
        known = as_scalars({name: value for name, value in results.items() if value is not None})
        speed = self._speed.examples_per_second(times)
        record(Progressed(step, steps, speed, known.get("loss"), known.get("accuracy")))
        if times is not None and (is_due or step == steps):  # many epochs may end in half a second
            self._reported_at = time.monotonic()
            record_task_speed(self._cluster, step, self._speed.since_last_asked(times))


class _Speed:
    """The examples per second, and the times of the tasks, over the epochs of one call of `fit`.

    Attributes:
        clock: The seconds of training.
    """

    def __init__(self) -> None:
        self._before: Any = 0.0  # the table of the epochs that have ended
        self._asked: Any = 0.0
        self.clock = TrainingClock()
        self._window: SpeedWindow | None = None  # None in the first steps, which TensorFlow traces
        self._last: float | None = None

    def begin(self, times: Any) -> None:
        """Start to measure after the first steps."""
        if self._window is None:
            self._window = SpeedWindow(self.clock.seconds(), self._examples(times))

    def examples_per_second(self, times: Any) -> float | None:
        """Return the examples per second of the last seconds; None if they are unknown."""
        examples = self._examples(times)
        if self._window is not None and examples > self._window.examples:
            self._last = self._window.speed(self.clock.seconds(), examples)
        return self._last

    def since_last_asked(self, times: Any) -> Any:
        """Return the table of the steps since the last call."""
        table = self._before + np.asarray(times)
        since, self._asked = table - self._asked, table
        return since

    def end_epoch(self, times: Any) -> None:
        """Add the table of an epoch to those before."""
        if times is not None:
            self._before = self._before + np.asarray(times)

    def _examples(self, times: Any) -> float:
        return 0.0 if times is None else float(np.sum((self._before + np.asarray(times))[:, EXAMPLES]))
