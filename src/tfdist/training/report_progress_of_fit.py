"""Report the progress of `fit` to the launcher or engine that runs the script, and record its events."""

import time
from collections.abc import Mapping
from typing import Any

from tfdist.launcher.chief_reports import Progress
from tfdist.launcher.record_events import record, record_progress
from tfdist.launcher.run_events import EpochEnded
from tfdist.training.logs import as_scalars

__all__ = ["FitReports"]

_SECONDS_BETWEEN_REPORTS = 0.5


class FitReports:
    """The reports of one call of `fit` by the chief; other tasks report nothing."""

    def __init__(self, *, is_chief: bool, epochs: int, steps: int | None) -> None:
        self._is_chief, self._epochs, self._steps = is_chief, epochs, steps
        self._reported_at = time.monotonic()

    def after_steps(self, epoch: int, done: int, logs: Mapping[str, Any]) -> None:
        """Report how many steps are done, at most twice a second.

        Args:
            epoch: The index of the epoch.
            done: The number of its steps that are done.
            logs: The results of the metrics so far.
        """
        if not self._is_chief or time.monotonic() - self._reported_at < _SECONDS_BETWEEN_REPORTS:
            return
        self._reported_at = time.monotonic()
        total = None if self._steps is None else self._epochs * self._steps
        before = 0 if self._steps is None else epoch * self._steps
        self._report(before + done, total, logs)

    def after_epoch(self, epoch: int, done: int, logs: Mapping[str, Any]) -> None:
        """Record the results of an epoch, in which so many steps were done."""
        if not self._is_chief:
            return
        self._steps = self._steps or done
        self._report((epoch + 1) * self._steps, self._epochs * self._steps, logs)
        record(EpochEnded(epoch=epoch, epochs=self._epochs, logs=dict(as_scalars(logs))))

    def _report(self, step: int, steps: int | None, logs: Mapping[str, Any]) -> None:
        loss = as_scalars({"loss": logs["loss"]}).get("loss") if "loss" in logs else None
        record_progress(Progress(step, steps, loss=loss))
