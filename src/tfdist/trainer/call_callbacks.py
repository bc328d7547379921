"""Call callbacks in a run as Keras's `fit` does, and keep their states for its checkpoints."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import learning_rate_variable
from tfdist._utils.nested_optimizers import without_loss_scale
from tfdist.errors import ConfigError
from tfdist.trainer.callbacks_of_config import refuse_setters_of_rate
from tfdist.trainer.checkpoint_manager import CallbackFacts
from tfdist.training.keras.callback_states import (
    as_plain,
    continue_logs,
    from_plain,
    load_states,
    states_of,
    weights_of,
)
from tfdist.training.keras.callbacks import make_callbacks
from tfdist.training.keras.variables_of_run import State, learning_rate, set_learning_rate
from tfdist.training.workers.stop_together import Stopping


class Callbacks:
    """Calls callbacks before and after the steps of a run; all tasks that compute call the methods.

    An epoch is a pass through the training data, whatever the evaluations and checkpoints within it.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        model: Any,
        strategy: tf.distribute.Strategy,
        *,
        per_epoch: int,
        total: int,
    ) -> None:
        """Set the callbacks' model.

        Args:
            callbacks: The callbacks.
            model: The model, which is built.
            strategy: The strategy. Workers other than the chief leave out Keras's callbacks that write files.
            per_epoch: The number of steps in an epoch.
            total: The number of steps in the run.

        Raises:
            ConfigError: A callback leaves other weights in the model between epochs, or sets the learning
                rate of a schedule.
        """
        rate = learning_rate_variable(without_loss_scale(model.optimizer))
        if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
            refuse_setters_of_rate(callbacks)
        if any(getattr(callback, "swap_on_epoch", False) for callback in callbacks):
            problem = "SwapEMAWeights with swap_on_epoch changes the weights of checkpoints"
            raise ConfigError("train.callbacks", problem, remedy="Leave swap_on_epoch out")
        self._model, self._per_epoch = model, per_epoch
        epochs = -(-total // per_epoch)
        self._calls = make_callbacks(
            callbacks, model, strategy, verbose=0, epochs=epochs, steps=min(per_epoch, total)
        )
        self._stopping = Stopping(callbacks, model, strategy)
        self._callbacks, self._initial_learning_rate = callbacks, learning_rate(model)
        swap = getattr(tf.keras.callbacks, "SwapEMAWeights", None)
        is_swapped = swap is not None and any(isinstance(callback, swap) for callback in callbacks)
        self._swapped = State(model, strategy, ()) if is_swapped else None
        self._before_test: dict[str, tf.Tensor] = {}
        self._epoch: int | None = None  # the epoch that has begun
        self._logs: dict[str, Any] = {}
        self._epoch_of_logs = 0  # if it has begun in an earlier process
        self.has_stopped = False

    def begin(self) -> None:
        """Call the callbacks at the start or restart of the training."""
        self._model.stop_training = False
        self._calls.on_train_begin()
        self.facts()  # on all tasks: the chief alone would raise an error when it saves

    def facts(self) -> CallbackFacts:
        """Return the states of the callbacks, for a checkpoint."""
        return CallbackFacts(
            states_of(self._callbacks, self._model),
            self._initial_learning_rate,
            learning_rate(self._model),
            as_plain(self._logs, "the logs"),
            self.has_stopped,
        )

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that the callbacks keep, by names for a checkpoint."""
        return weights_of(self._callbacks)

    def continue_logs(self, facts: CallbackFacts) -> None:
        """Make CSVLoggers continue their files as they were at a checkpoint."""
        continue_logs(self._callbacks, self._model, facts.states)

    def restore(self, facts: CallbackFacts, arrays: Mapping[str, Any], step: int) -> None:
        """Set the states of the callbacks at a step; a learning rate that the config has changed is kept."""
        load_states(self._callbacks, self._model, facts.states, arrays)
        self._logs, self._epoch_of_logs = from_plain(facts.logs), (step - 1) // self._per_epoch
        self.has_stopped = facts.has_stopped
        if facts.learning_rate is not None and facts.initial_learning_rate == self._initial_learning_rate:
            set_learning_rate(self._model, facts.learning_rate)

    def go_back(self) -> None:
        """Begin an epoch again at an earlier step, and forget whether a callback has stopped since then."""
        self._epoch, self.has_stopped, self._model.stop_training = None, False, False

    def before_steps(self, step: int) -> None:
        """Call the callbacks before an execution, and before its epoch if it is the first."""
        epoch, index = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._calls.on_epoch_begin(epoch)
        self._calls.on_train_batch_begin(index)

    def after_steps(self, step: int, logs: Mapping[str, Any]) -> bool:
        """Call the callbacks after an execution; return whether one of them stops the training."""
        self._logs = dict(logs)
        self._calls.on_train_batch_end((step - 1) % self._per_epoch, self._logs)
        self.has_stopped = self._stopping.after_execution() or self.has_stopped
        return self.has_stopped

    def before_test(self) -> None:
        """Call the callbacks before an evaluation."""
        if self._swapped is not None:
            self._before_test = self._swapped.values()
        self._calls.on_test_begin()

    def after_test(self, results: Mapping[str, float]) -> None:
        """Call the callbacks after an evaluation."""
        self._calls.on_test_end(dict(results))

    def leave_test(self) -> None:
        """Put weights that SwapEMAWeights has swapped back exactly, for an evaluation that is left."""
        if self._swapped is not None:
            self._swapped.assign(list(self._before_test.values()))

    def after_epoch(self, results: Mapping[str, float]) -> bool:
        """Call the callbacks after an epoch, with the results of an evaluation if there was one.

        Returns:
            Whether a callback stops the training.
        """
        self._logs.update({f"val_{name}": value for name, value in results.items()})
        epoch = self._epoch_of_logs if self._epoch is None else self._epoch
        self._calls.on_epoch_end(epoch, self._logs)
        self._epoch = None
        self.has_stopped = self._stopping.after_epoch() or self.has_stopped
        return self.has_stopped

    def end(self) -> None:
        """Call the callbacks after the last epoch."""
        self._calls.on_train_end(self._logs)
