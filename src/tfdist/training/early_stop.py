"""Stop a phase in all processes at once, when a callback in any of them asks for it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.coordination.stall_watch import EXCHANGE, doing
from tfdist.training.keras.compat import keras_of
from tfdist.training.leave_loop_together import sum_over_workers

__all__ = ["Stopping"]

# The hooks of callbacks within each phase. A callback ends a phase by the attribute stop_PHASE of the model.
_HOOKS = {
    "training": (
        "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin",
        "on_batch_end",
    ),
    "evaluating": ("on_test_begin", "on_test_batch_begin", "on_test_batch_end"),
    "predicting": ("on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end"),
}  # fmt: skip


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
        self._model, self._attribute = model, f"stop_{phase}"
        self._is_shared = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._any = _make_any_worker(strategy) if self._is_shared else bool
        self.is_within_epochs = self._any(
            any(_may_stop_within(callback, model, phase) for callback in callbacks)
        )

    def after_execution(self) -> bool:
        """Return whether to stop now, in the middle of an epoch."""
        if self._is_shared and not self.is_within_epochs:
            return False
        return self._agreed()

    def after_epoch(self) -> bool:
        """Return whether to stop after this epoch."""
        return self._agreed()

    def _agreed(self) -> bool:
        stops = bool(self._any(getattr(self._model, self._attribute)))
        setattr(self._model, self._attribute, stops)
        return stops


@functools.lru_cache(maxsize=1)  # tracing takes long
def _make_any_worker(strategy: tf.distribute.Strategy) -> Callable[[bool], bool]:
    """Return a function that tells whether any worker passes True; all workers must call it."""
    run = tf.function(lambda value: sum_over_workers(strategy, value), autograph=False)

    def is_true_anywhere(value: bool) -> bool:
        with doing(EXCHANGE):
            return bool(run(tf.constant(1.0 if value else 0.0)) > 0)

    return is_true_anywhere


def _may_stop_within(callback: Any, model: Any, phase: str) -> bool:
    callbacks = keras_of(model).callbacks
    kinds = (callbacks.LambdaCallback, callbacks.TerminateOnNaN)
    is_kerass = type(callback).__module__.partition(".")[0] in ("keras", "tf_keras")
    if is_kerass and not isinstance(callback, kinds):
        return False
    return any(
        getattr(getattr(callback, hook), "__func__", None) is not getattr(callbacks.Callback, hook)
        for hook in _HOOKS[phase]
    )
