"""Stop training in all processes at once, when a callback in any of them asks for it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.agreement import added_up
from tfdist.loop.generations import keras_of

__all__ = ["Stopping"]

_HOOKS = (
    "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin",
    "on_batch_end",
)  # fmt: skip


class Stopping:
    """Know when training is to stop.

    A worker that stops alone leaves the others waiting for it in the next exchange. So workers agree at the
    end of each epoch. Within an epoch they have to agree after each execution, which costs an exchange (2 ms
    between processes of a small machine): they do where any of them has a callback that could ask for it.
    """

    def __init__(self, callbacks: Sequence[Any], model: Any, strategy: tf.distribute.Strategy) -> None:
        self._model = model
        self._is_shared = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._any = _make_any(strategy) if self._is_shared else bool
        self._within_epochs = self._any(any(_may_stop_within_epochs(each, model) for each in callbacks))

    def after_execution(self) -> bool:
        """Say whether to stop now, in the middle of an epoch."""
        if self._is_shared and not self._within_epochs:
            return False
        return self._agreed()

    def after_epoch(self) -> bool:
        """Say whether to stop after this epoch."""
        return self._agreed()

    def _agreed(self) -> bool:
        self._model.stop_training = self._any(self._model.stop_training)
        return bool(self._model.stop_training)


def _make_any(strategy: tf.distribute.Strategy) -> Callable[[bool], bool]:
    """Make a function that says whether any worker says yes; all of them have to call it."""
    run = tf.function(lambda said: added_up(strategy, said), autograph=False)

    def is_any(said: bool) -> bool:
        return bool(run(tf.constant(1.0 if said else 0.0)) > 0)

    return is_any


def _may_stop_within_epochs(callback: Any, model: Any) -> bool:
    callbacks = keras_of(model).callbacks
    kinds = (callbacks.LambdaCallback, callbacks.TerminateOnNaN)
    is_kerass = type(callback).__module__.partition(".")[0] in ("keras", "tf_keras")
    if is_kerass and not isinstance(callback, kinds):
        return False
    return any(
        getattr(getattr(callback, hook), "__func__", None) is not getattr(callbacks.Callback, hook)
        for hook in _HOOKS
    )
