"""Decide what follows where the loss or a variable is no number any more: the end, or another way on.

The step whose loss shows it need not be the one to blame: a gradient that overflows leaves its own step's
loss as it is, and spoils the next one's. So a run that may leave batches out goes back to its last checkpoint
and takes one step at a time, with a look at the variables after each. The batch of the first step after which
something is no number is left out: the run goes back once more, and on without it.
"""

import logging
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.calls import fetch
from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.errors import ConfigError, NotFinite
from tfdist.keeping import Keeper
from tfdist.loop import Failure, State, take_from_chief
from tfdist.pace import computing_tasks

__all__ = ["Recovery", "check_nonfinite"]

# To one checkpoint: a model that has diverged fails with any batch.
_MOST_TIMES_BACK = 10
_log = logging.getLogger("tfdist")


def check_nonfinite(config: Config, *, is_apart: bool) -> None:
    """Refuse to leave batches out where workers go each at its own pace."""
    if config.train.nonfinite == "skip" and is_apart:
        problem = (
            "skip cannot be under parameter_server: what other workers did meanwhile is not undone alike"
        )
        raise ConfigError("train.nonfinite", problem, remedy="Take parameter_server_sync, or say stop")


class Recovery:
    """Watch over losses and variables of a run; all tasks call it, and come to the same."""

    def __init__(
        self, config: Config, cluster: ClusterConfig, strategy: tf.distribute.Strategy, keeper: Keeper
    ) -> None:
        is_apart = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        check_nonfinite(config, is_apart=is_apart)
        self._cluster, self._strategy, self._keeper = cluster, strategy, keeper
        self._can_skip = not is_apart
        self._skips = config.train.nonfinite == "skip"
        self._searched_until = 0
        self._back_to, self._times_back = -1, 0
        self._begun_so: list[str] = []

    def begin(self, state: State) -> None:
        """Note which variables are no numbers from the start: such as a maximum of nothing, which is -inf.

        Where batches may be left out, there has to be a checkpoint to go back to.
        """
        values = state.values() if self._cluster.is_chief else {}
        self._begun_so = _no_numbers(values)
        if self._skips and self._keeper.kept is None:
            self._keeper.save(0, values, {})

    @property
    def is_searching(self) -> bool:
        """Say whether the step to blame is searched for."""
        return self._searched_until > 0

    def goal(self, step: int, goal: int) -> int:
        """Give the step to train up to: the next one, while the one to blame is searched for."""
        if self.is_searching and step >= self._searched_until:
            self._say("up to step %d all are numbers this time: no batch is left out", step)
            self._searched_until = 0
        return step + 1 if self.is_searching else goal

    def check_losses(self, step: int, failure: Failure | None) -> None:
        """Raise where a loss is no number."""
        if failure is not None:
            where = self._named(failure)
            raise self._error(f"the loss became {failure.kind} at step {step}{where}")

    def checked(self, step: int, state: State) -> Mapping[str, Any]:
        """Give the chief all variables, to be kept; raise on all tasks where one is no number."""
        values = state.values() if self._cluster.is_chief else {}
        found = [each for each in _no_numbers(values) if each not in self._begun_so]
        names = state.names
        place = names.index(found[0]) if found else -1
        [agreed] = take_from_chief(self._strategy, [place], is_chief=self._cluster.is_chief)
        if agreed >= 0:
            raise self._error(f"the variable {names[int(agreed)]} is NaN or infinite after step {step}")
        return values

    def answer(self, failure: NotFinite, step: int) -> None:
        """Take note of what is to be done otherwise from the last checkpoint on, or raise the failure."""
        kept = self._keeper.kept
        if not self._skips or kept is None:
            raise failure
        if self._back_to != kept:
            self._back_to, self._times_back = kept, 0
        if self._times_back == _MOST_TIMES_BACK:
            problem = f"{failure.problem}, after going back to step {kept} {_MOST_TIMES_BACK} times"
            raise NotFinite("train", problem, remedy=failure.remedy) from failure
        self._times_back += 1
        if self.is_searching or step == kept + 1:
            batch = self._keeper.batch(step - 1)
            self._keeper.skipped.append(batch)
            self._searched_until = 0
            self._say("%s: going back to step %d, and on without batch %d", failure.problem, kept, batch)
        else:
            self._searched_until = step
            self._say("%s: going back to step %d, to find the batch to blame", failure.problem, kept)

    def _error(self, problem: str) -> NotFinite:
        kept = self._keeper.kept
        remedy = "No checkpoint was there yet" if kept is None else f"The checkpoint of step {kept} is kept"
        remedy += "; lower train.learning_rate"
        if self._can_skip and not self._skips:
            remedy += ", or say train.nonfinite: skip"
        return NotFinite("train", problem, remedy=remedy)

    def _named(self, failure: Failure) -> str:
        tasks = computing_tasks(self._cluster)
        if failure.of < 2:
            return ""
        if len(failure.replicas) == failure.of:
            return ", on all of them at once"
        if not tasks:
            names = [f"replica {each}" for each in failure.replicas]
        else:
            rows = [each * len(tasks) // failure.of for each in failure.replicas]
            names = list(dict.fromkeys(str(tasks[row]) for row in rows))
        return f", on {' and '.join(names)} first"

    def _say(self, text: str, *args: Any) -> None:
        if self._cluster.is_chief:
            _log.warning(text, *args)


def _no_numbers(values: Mapping[str, Any]) -> list[str]:
    """Name the variables that hold NaN or infinity."""
    found = {}
    for name, value in values.items():
        if value.dtype.is_floating:
            with tf.device(value.device):  # where it is: what the ps tasks hold is not sent for this
                found[name] = tf.reduce_all(tf.math.is_finite(value))
    are_finite = fetch(tf.stack(list(found.values()))) if found else []
    return [name for name, is_finite in zip(found, are_finite, strict=True) if not is_finite]
