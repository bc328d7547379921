"""Make all workers leave a loop at the same step: when a callback or a signal asks one of them to stop."""

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import is_of_keras
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.coordination.stall_watch import EXCHANGE, doing
from tfdist.training.workers.choose_steps_per_call import StepsPerCall
from tfdist.training.workers.exchange_numbers import sum_over_workers

# The hooks of callbacks within each phase. A callback ends a phase by the attribute stop_PHASE of the model.
_HOOKS = {
    "training": (
        "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin",
        "on_batch_end",
    ),
    "evaluating": ("on_test_begin", "on_test_batch_begin", "on_test_batch_end"),
    "predicting": ("on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end"),
}  # fmt: skip
_SECONDS_APART = 1.0
_MOST_APART = 64  # executions; a bound, since executions may suddenly take longer


class Agreement:
    """A decision of all workers, about once a second, whether to leave a loop.

    A worker in step that leaves alone makes the others wait in the next exchange. Each decision costs an
    exchange of its own. The chief therefore measures the time, and each exchange also tells the workers after
    how many executions to make the next one, and how many steps an execution takes until then.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, *, is_chief: bool, steps_per_call: StepsPerCall | None = None
    ) -> None:
        self._is_shared = has_mirrored_workers(strategy)
        self._strategy, self._is_chief = strategy, is_chief
        self._calls = StepsPerCall(1) if steps_per_call is None else steps_per_call
        self._executions, self._apart = 0, 1
        self._asked_at = time.monotonic()

    def after_execution(self, wants: bool, steps: int = 0) -> bool:
        """Return whether to leave; all workers must call this method after each execution.

        `steps` are those of the execution; 0 if it is none of those whose steps are chosen.
        """
        if steps:
            self._calls.after_call(steps)
        if not self._is_shared:
            self._calls.number = self._calls.wanted
            return wants
        self._executions += 1
        if self._executions < self._apart:
            return False
        now = time.monotonic()
        in_time = self._executions * _SECONDS_APART / max(now - self._asked_at, 1e-3)
        in_time *= self._calls.number / self._calls.wanted
        apart = max(1, min(int(in_time), 2 * self._apart, _MOST_APART))
        of_chief = (apart, self._calls.wanted) if self._is_chief else (0, 0)
        with doing(EXCHANGE):
            count, self._apart, self._calls.number = (
                int(value) for value in sum_over_workers(self._strategy, [wants, *of_chief])
            )
        self._executions, self._asked_at = 0, now
        return count > 0


class Stopping:
    """The decision of all processes to stop a phase: training, evaluating or predicting.

    A worker that stops alone makes the others wait in the next exchange. So workers agree at the end of each
    epoch. To agree after each execution costs an exchange (2 ms between processes of a small machine).
    Workers do so only if a callback of any worker could stop the phase within an epoch.

    Attributes:
        is_within_epochs: Whether a callback of the user's own is called within epochs.
    """

    def __init__(
        self, callbacks: Sequence[Any], model: Any, strategy: tf.distribute.Strategy, phase: str = "training"
    ) -> None:
        self._model, self._attribute, self._strategy = model, f"stop_{phase}", strategy
        self._is_shared = has_mirrored_workers(strategy)
        self.is_within_epochs = self._any(
            any(_may_stop_within(callback, model, phase) for callback in callbacks)
        )

    def after_execution(self) -> bool:
        """Return whether to stop now, in the middle of an epoch."""
        if self._is_shared and not self.is_within_epochs:
            return False
        return self.after_epoch()

    def after_epoch(self) -> bool:
        """Return whether to stop after this epoch."""
        stops = bool(self._any(getattr(self._model, self._attribute)))
        setattr(self._model, self._attribute, stops)
        return stops

    def _any(self, value: bool) -> bool:
        """Return whether any worker passes True; all workers must call it."""
        if not self._is_shared:
            return value
        with doing(EXCHANGE):
            return bool(sum_over_workers(self._strategy, 1.0 if value else 0.0) > 0)


def _may_stop_within(callback: Any, model: Any, phase: str) -> bool:
    callbacks = keras_of(model).callbacks
    kinds = (callbacks.LambdaCallback, callbacks.TerminateOnNaN)
    if is_of_keras(type(callback)) and not isinstance(callback, kinds):
        return False
    return any(
        getattr(getattr(callback, hook), "__func__", None) is not getattr(callbacks.Callback, hook)
        for hook in _HOOKS[phase]
    )
