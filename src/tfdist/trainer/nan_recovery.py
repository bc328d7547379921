"""Decide what a run does after a NaN or infinite loss or variable: end, or resume without one batch.

The step with such a loss need not be the cause: a gradient that overflows does not change the loss of its own
step, but that of the next step. So with `on_nan: skip`, the run goes back to its last checkpoint, takes one
step at a time, and checks the variables after each. The batch of the first step after which a variable is NaN
or infinite is the cause: the run goes back again, and continues without this batch. Without the search, an
Adam moment that has overflowed, which no loss shows, would cost all batches since the checkpoint.
"""

import logging
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.coordination.calls_between_tasks import fetch
from tfdist.errors import ConfigError, NotFinite
from tfdist.trainer.checkpoint_manager import CheckpointManager
from tfdist.trainer.config import Config
from tfdist.trainer.run_context import RunContext
from tfdist.training.keras.variables_of_run import State
from tfdist.training.runners.replica_stats import Failure
from tfdist.training.workers.exchange_numbers import take_from_chief

# Returns to one checkpoint. A model that has diverged fails with any batch.
_MOST_TIMES_BACK = 10
_log = logging.getLogger("tfdist")


def check_on_nan(config: Config, *, is_asynchronous: bool) -> None:
    """Raise ConfigError for `on_nan: skip` if the workers are asynchronous."""
    if config.train.on_nan == "skip" and is_asynchronous:
        problem = "skip is not supported with parameter_server: other workers' updates cannot be rolled back"
        raise ConfigError("train.on_nan", problem, remedy="Take parameter_server_sync, or set stop")


class Recovery:
    """The checks of the losses and variables of a run; all tasks call them, with the same result."""

    def __init__(self, context: RunContext, checkpoints: CheckpointManager) -> None:
        check_on_nan(context.config, is_asynchronous=context.is_asynchronous)
        self._context, self._checkpoints = context, checkpoints
        self.skips = context.config.train.on_nan == "skip"
        self._searched_until = 0
        self._back_to, self._times_back = -1, 0
        self._initially_not_finite: list[str] = []

    def begin(self, state: State) -> None:
        """Record which variables are NaN or infinite from the start, such as an initial maximum of -inf."""
        self._initially_not_finite = _find_not_finite(state.values()) if self._context.is_chief else []

    @property
    def is_searching(self) -> bool:
        """Return whether the run searches for the step that caused the failure."""
        return self._searched_until > 0

    def goal(self, step: int, goal: int) -> int:
        """Return the step to train up to, which is the next step during a search."""
        if self.is_searching and step >= self._searched_until:
            self._warn("nothing is NaN or infinite up to step %d this time: no batch is left out", step)
            self._searched_until = 0
        return step + 1 if self.is_searching else goal

    def check_losses(self, step: int, failure: Failure | None) -> None:
        """Raise NotFinite if a loss is NaN or infinite."""
        if failure is not None:
            where = self._named(failure)
            raise self._error(f"the loss became {failure.kind} at step {step}{where}")

    def checked_values(self, step: int, state: State) -> Mapping[str, Any]:
        """Return all variables on the chief; raise NotFinite on all tasks if one is NaN or infinite."""
        is_chief = self._context.is_chief
        values = state.values() if is_chief else {}
        not_finite = [name for name in _find_not_finite(values) if name not in self._initially_not_finite]
        names = state.names
        place = names.index(not_finite[0]) if not_finite else -1
        [agreed] = take_from_chief(self._context.strategy, [place], is_chief=is_chief)
        if agreed >= 0:
            raise self._error(f"the variable {names[int(agreed)]} is NaN or infinite after step {step}")
        return values

    def batch_to_skip(self, failure: NotFinite, step: int) -> int | None:
        """Return the batch to leave out, or None to search for it first; or raise the failure."""
        kept = self._checkpoints.newest_step
        if not self.skips or kept is None:
            raise failure
        if self._back_to != kept:
            self._back_to, self._times_back = kept, 0
        if self._times_back == _MOST_TIMES_BACK:
            problem = f"{failure.problem}, after going back to step {kept} {_MOST_TIMES_BACK} times"
            raise NotFinite("train", problem, remedy=failure.remedy) from failure
        self._times_back += 1
        if self.is_searching or step == kept + 1:
            batch = self._checkpoints.batch(step - 1)
            self._searched_until = 0
            self._warn(
                "%s: going back to step %d, and continuing without batch %d", failure.problem, kept, batch
            )
            return batch
        self._searched_until = step
        self._warn("%s: going back to step %d, to find the batch that caused it", failure.problem, kept)
        return None

    def _error(self, problem: str) -> NotFinite:
        kept = self._checkpoints.newest_step
        remedy = "There is no checkpoint yet" if kept is None else f"The checkpoint of step {kept} is kept"
        remedy += "; lower train.learning_rate"
        if not self.skips and not self._context.is_asynchronous:
            remedy += ", or set train.on_nan: skip"
        return NotFinite("train", problem, remedy=remedy)

    def _named(self, failure: Failure) -> str:
        tasks = self._context.cluster.computing_tasks()
        if failure.of < 2:
            return ""
        if len(failure.replicas) == failure.of:
            return ", on all replicas at once"
        if not tasks:
            names = [f"replica {replica}" for replica in failure.replicas]
        else:
            rows = [replica * len(tasks) // failure.of for replica in failure.replicas]
            names = list(dict.fromkeys(str(tasks[row]) for row in rows))
        return f", on {' and '.join(names)} first"

    def _warn(self, text: str, *args: Any) -> None:
        if self._context.is_chief:
            _log.warning(text, *args)


def _find_not_finite(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables that contain NaN or infinity."""
    checks = {}
    for name, value in values.items():
        if value.dtype.is_floating:
            with tf.device(value.device):  # on its own device: ps tasks need not send it
                checks[name] = tf.reduce_all(tf.math.is_finite(value))
    are_finite = fetch(tf.stack(list(checks.values()))) if checks else []
    return [name for name, is_finite in zip(checks, are_finite, strict=True) if not is_finite]
