"""Save the checkpoints of a run, and find the one from which it resumes after a stop."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from tfdist._utils.shared_config_types import name_and_arguments
from tfdist.errors import ConfigError, shown
from tfdist.launcher.environment import START
from tfdist.launcher.hide_secrets import values_without_secrets
from tfdist.trainer.evaluator_notes import EvaluatorNotes
from tfdist.trainer.keras_names import snake_case
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.starts_and_lost_steps import RunHistory
from tfdist.trainer.step_counts import total_steps
from tfdist.training.checkpoints.checkpoint_files import Checkpoint, check_variables
from tfdist.training.checkpoints.checkpoint_writer import CheckpointWriter
from tfdist.training.checkpoints.rounding_errors import collect_rounding_errors
from tfdist.training.checkpoints.share_checkpoint import SharedCheckpoint, Values
from tfdist.training.keras.callback_states import CallbackState
from tfdist.training.keras.variables_of_run import State
from tfdist.training.workers.call_on_chief import call_on_chief
from tfdist.training.workers.exchange_numbers import take_from_chief

_log = logging.getLogger("tfdist")


class CallbackFacts(msgspec.Struct):
    """The states of callbacks, and the learning rate that they may have changed.

    Attributes:
        states: The state of each callback.
        initial_learning_rate: The learning rate with which the run began, where it is a number.
        learning_rate: The learning rate now.
        logs: The logs of the epoch.
        has_stopped: Whether one of them has stopped the training.
    """

    states: list[CallbackState] = []
    initial_learning_rate: float | None = None
    learning_rate: float | None = None
    logs: dict[str, Any] = {}
    has_stopped: bool = False


class _Facts(msgspec.Struct):
    """The facts of a checkpoint of a config's run."""

    trained: dict[str, Any]
    examples: int
    evaluation: dict[str, float]
    best: dict[str, int | float]
    skipped_batches: list[int] = []
    is_stopped: bool = False
    is_pending: bool = False
    callbacks: CallbackFacts = msgspec.field(default_factory=CallbackFacts)
    start: str = ""  # the mark of the launch that has written it
    seconds: float = 0.0  # that the run had taken, all its starts together


class CheckpointManager:
    """The checkpoints of a run: all tasks call the methods, and only the chief reads and writes files.

    Attributes:
        writer: Writes the checkpoints, in the background if the config says so.
        history: The starts of the run.
        seconds_before: The seconds that the run had taken up to the checkpoint from which it resumes.
    """

    def __init__(self, context: RunContext) -> None:
        config, data = context.config, context.data
        self._folder, self._config = context.folder.checkpoints, config
        self._start = os.environ.get(START, "")
        self._place, self._remote = context.folder.shown(self._folder), context.remote
        self._evaluator = EvaluatorNotes(context.folder) if config.cluster.evaluator else None
        self._total = total_steps(config, data)
        self._strategy, self._is_chief = context.strategy, context.is_chief
        section = config.checkpoint
        self.writer = CheckpointWriter(self._folder, keep=section.keep, background=section.background)
        self.history = RunHistory(context.folder, context.remote)
        self._found: SharedCheckpoint[_Facts] | None = None
        self.newest_step: int | None = None  # of the checkpoints
        self.seconds_before, self._began = 0.0, time.monotonic()
        self.skipped: tuple[int, ...] = ()  # numbers of global batches
        self.has_ended = False  # whether the training has ended with the newest checkpoint
        # Whether the evaluation and the callbacks that are due at its step are still to be done.
        self.is_pending = False
        self._best: dict[str, Any] = {}
        # These settings must stay the same when a run resumes, except secrets, which may be renewed.
        trained = {
            "data.name": data.name,
            "data.fingerprint": data.fingerprint,
            "data.batch_size": config.data.batch_size,
            "data.augment": config.data.augment,
            "model.name": config.model.name,
            **{f"model.options.{name}": value for name, value in config.model.options.items()},
            "train.optimizer": config.train.optimizer,
            "train.loss": config.train.loss,
            "data.one_hot": config.data.one_hot,
            "train.schedule": config.train.schedule,
            "train.seed": config.train.seed,
        }
        self._trained: dict[str, Any] = values_without_secrets(trained)

    def find(self) -> int:
        """Return the step to resume from: that of the chief's newest complete checkpoint, or 0.

        Raises:
            ConfigError: The checkpoint is one of another run, or the config says never to resume. All tasks
                raise it.
        """
        self.writer.wait()
        self._found = found = SharedCheckpoint.find(
            self._folder,
            _Facts,
            self._strategy,
            of="tfdist train",
            is_chief=self._is_chief,
            check=self._check,
        )
        step = 0 if found is None else found.step
        if found is not None and not self.history.starts:  # otherwise this start has written it
            self.seconds_before = found.facts.seconds
        call_on_chief(self._strategy, lambda: self.history.begin(step), is_chief=self._is_chief)
        self.has_ended = found is not None and self._is_over(found.facts)
        self.is_pending = found is not None and found.facts.is_pending
        if found is not None and not self.skipped:
            # After the first call, all tasks know the batches that were left out since that checkpoint.
            self.skipped = tuple(found.facts.skipped_batches)
        self.newest_step = None if found is None else step
        return step

    def _check(self, found: Checkpoint, facts: _Facts) -> None:
        is_own = self.newest_step is not None or (facts.start != "" and facts.start == self._start)
        if self._config.checkpoint.resume == "never" and not is_own:
            problem = f"already has a checkpoint of step {found.step}, and checkpoint.resume is never"
            remedy = "Set another --run_dir, or set checkpoint.resume: auto to continue"
            raise ConfigError(self._place, problem, remedy=remedy)
        _check_same(str(found.folder), facts.trained, self._trained)
        check_total(self._place, found.step, self._total)

    def batch(self, step: int) -> int:
        """Return the number of the global batch that follows after `step` steps."""
        number = step
        for skipped in self.skipped:
            number += skipped <= number
        return number

    def skip(self, batch: int) -> None:
        """Leave a global batch out from now on; all tasks must call this."""
        self.skipped = tuple(sorted((*self.skipped, batch)))

    def read(self, state: State, total: int) -> tuple[CallbackFacts, Values] | None:
        """Return the states of callbacks and all values in the checkpoint to resume from, if there is one."""
        found = self._found
        if found is None:
            return None
        found.check(lambda checkpoint: check_variables(checkpoint, state.values()))
        values = found.read()
        self._best = dict(found.facts.best)
        _log.info("resuming at step %d of %d, from %s", found.step, total, self._place)
        return found.facts.callbacks, values

    def has_enough(self, results: Mapping[str, float]) -> bool:
        """Return whether an evaluation reaches train.until_accuracy; all tasks call this and agree."""
        if self._config.train.until_accuracy is None:
            return False
        [is_enough] = take_from_chief(self._strategy, [self._is_enough(results)], is_chief=self._is_chief)
        return bool(is_enough)

    def _is_enough(self, results: Mapping[str, float]) -> bool:
        wanted = self._config.train.until_accuracy
        # Keras computes in 32 bits, where 0.9 is a little less than in 64 bits.
        return wanted is not None and bool(np.float32(results.get("accuracy", 0.0)) >= np.float32(wanted))

    def _is_over(self, facts: _Facts) -> bool:
        """Return whether training has ended with a checkpoint: at train.until_accuracy, or by a callback."""
        is_stopped = bool(self._config.train.callbacks) and facts.is_stopped and not facts.is_pending
        return is_stopped or self._is_enough(facts.evaluation)

    def save(
        self,
        step: int,
        values: Mapping[str, Any],
        results: Mapping[str, float],
        *,
        is_stopped: bool = False,
        is_pending: bool = False,
        callbacks: CallbackFacts | None = None,
    ) -> None:
        """Write what the run needs to resume on the chief, and remove old checkpoints; all tasks call this.

        The best of the checkpoints with an evaluation is kept.

        Args:
            step: The number of steps done.
            values: All variables, and arrays of callbacks.
            results: The evaluation at this step, if there was one.
            is_stopped: Whether a callback has ended the training at this step.
            is_pending: Whether the evaluation and the callbacks that are due at this step have not been.
            callbacks: The states of callbacks on the chief.
        """
        self.newest_step = step
        files = collect_rounding_errors(self._strategy, is_chief=self._is_chief)
        if not self._is_chief:
            return
        if results and results.get("accuracy", 0.0) >= self._best.get("accuracy", 0.0):
            self._best = {"step": step, **results}
        facts = msgspec.to_builtins(
            _Facts(
                trained=self._trained,
                examples=step * self._config.data.batch_size,
                evaluation=dict(results),
                best=self._best,
                skipped_batches=list(self.skipped),
                is_stopped=is_stopped,
                is_pending=is_pending,
                callbacks=callbacks or CallbackFacts(),
                start=self._start,
                seconds=self.seconds_before + time.monotonic() - self._began,
            )
        )
        also = [self._best.get("step", 0)]
        if self._evaluator is not None:
            also.append(self._evaluator.best_step())
            if not results:  # the last evaluation that is recorded is this process's own
                self._evaluator.record_new()

        def upload() -> None:
            if self._remote is not None:
                self._remote.put_checkpoint(step, self._config.checkpoint.keep, also)

        self.writer.save(step, values, facts, also=also, files=files, then=upload)

    def record_evaluator(self) -> None:
        """Record what the evaluator has noted since the last checkpoint, before results of this process."""
        if self._evaluator is not None:
            self._evaluator.record_new()


def check_total(place: str, step: int, total: int) -> None:
    """Raise ConfigError if a run has a checkpoint of a step after its last one."""
    if step > total:
        problem = f"has a checkpoint of step {step}, but the run ends at step {total} now"
        raise ConfigError(place, problem, remedy="Set another --run_dir, or at least as many steps")


def _in_one_spelling(setting: str, value: Any) -> Any:
    """Return a value of the config; if it names a class of Keras, such as Adam, in the way it is compared."""
    if setting not in ("train.optimizer", "train.loss") or not isinstance(value, (str, dict)):
        return value
    name, arguments = name_and_arguments(value)
    return (name if ":" in name else snake_case(name)), arguments


def _check_same(where: str, earlier: Mapping[str, Any], trained: Mapping[str, Any]) -> None:
    """Raise ConfigError if the config differs from what was trained, with the first difference."""
    earlier = dict(values_without_secrets(earlier))  # older versions of tfdist stored secrets, too
    if earlier.get("data.fingerprint") == trained["data.fingerprint"]:  # the same data, in another place
        earlier["data.name"] = trained["data.name"]
    for name in {**earlier, **trained}:
        before, value = earlier.get(name), trained.get(name)
        is_other = _in_one_spelling(name, before) != _in_one_spelling(name, value)
        is_option = name.startswith("model.options.")  # which may be null
        if is_other or (is_option and (name in earlier) != (name in trained)):
            problem = f"was trained with {name} {shown(before)}, but now it is {shown(value)}"
            remedy = "Set another --run_dir, or the same value"
            raise ConfigError(where, problem, remedy=remedy)
