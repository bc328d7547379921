"""Run the batches of an epoch, and call the callbacks around each execution as Keras does."""

import contextlib
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist._utils.keras_private import compiled_steps_per_execution
from tfdist._utils.profiler_span import STEP
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.coordination.calls_between_tasks import fetch
from tfdist.training.arguments import whole_number
from tfdist.training.data.distribute import Data, known_steps
from tfdist.training.keras.callbacks import count
from tfdist.training.keras.steps.step_base import KerasStep
from tfdist.training.model_session import Phase
from tfdist.training.runners.multi_step import Totals

RAN_OUT = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or generator can make "
    "at least `steps_per_epoch * epochs` batches: call its repeat(), or give fit repeat=True."
)


@dataclass
class DataPosition:
    """The position of epochs of a number of steps in their data, as Keras 3 counts it.

    Attributes:
        size: The number of batches in the data; None if unknown. Keras learns it where the data end.
        seen: The number of batches since the beginning of the data, in whole executions.
    """

    size: int | None
    seen: int = 0

    @classmethod
    def of(
        cls, data: Data, model: Any, strategy: tf.distribute.Strategy, steps: int | None
    ) -> "DataPosition | None":
        """Return the beginning of data; None if epochs take all data, or if Keras 3 does not count them."""
        if steps is None or is_asynchronous(strategy) or is_keras_2(model):
            return None
        size = int(data.cardinality()) if isinstance(data, tf.data.Dataset) else -1
        return cls(size if size >= 0 else None)

    @property
    def is_at_end(self) -> bool:
        """Return whether the data are known to have ended."""
        return bool(self.size) and self.seen >= (self.size or 0)

    def end_epoch(self, runner: Any, *, missing: int) -> None:
        """Begin the data again if an epoch ends where they do; it has missed a number of batches."""
        self.seen += missing
        if self.is_at_end:
            runner.begin_again()
        if self.is_at_end or missing:
            self.size = self.size or self.seen
            self.seen = 0


@dataclass
class EpochPart:
    """The part of an epoch that is done, which `run_batches` continues and keeps up to date.

    Attributes:
        done: The number of batches.
        index: The index of the next batch, as callbacks get it.
        totals: The totals of the metrics; None before the first batch.
        logs: The logs of the last batch; at the end of the epoch the metrics' results.
        is_over: Whether its last batch is known to be done.
        is_leaving: Whether the epoch is left, without a word to the callbacks, once all executions that are
            under way have ended.
    """

    done: int = 0
    index: int = 0
    totals: Any = None
    logs: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    is_leaving: bool = False

    def end(self, step: KerasStep) -> None:
        """Write the metrics' results to the logs, and the totals to the metrics."""
        if self.done:
            self.logs = step.results(self.totals)
        step.store(self.totals)


@dataclass(frozen=True)
class EpochBatches:
    """The batches that each epoch takes of its data.

    Attributes:
        steps: The number of batches; all if None.
        expected: The number of batches that there are; None if unknown.
        repeats: Whether to begin the data again if they end before `steps` batches; otherwise the epoch ends.
        position: The position in the data, which epochs of a number of steps share; None if none ends early.
    """

    steps: int | None = None
    expected: int | None = None
    repeats: bool = False
    position: DataPosition | None = None

    @classmethod
    def of(
        cls,
        data: Data | None,
        model: Any,
        strategy: tf.distribute.Strategy,
        steps: Any,
        name: str,
        *,
        repeats: bool = False,
    ) -> "EpochBatches":
        """Return the batches of epochs from the beginning of data; `name` is that of the argument `steps`.

        Raises:
            ConfigError: `steps` is not a number of batches.
            DataError: The data never end, and `steps` is None.
        """
        if steps is not None:
            steps = whole_number(name, steps, 1)
        if data is None:
            return cls(steps)
        expected = known_steps(data, name) if steps is None else steps
        position = None if repeats else DataPosition.of(data, model, strategy, steps)
        return cls(steps, expected, repeats, position)

    def steps_left(self, part: EpochPart, together: int) -> int | None:
        """Return how many steps an epoch has left, in whole executions of `together`; None for all data."""
        return None if self.steps is None else -(-self.steps // together) * together - part.done

    def are_taken(self, part: EpochPart) -> bool:
        """Return whether it is known that an epoch has no more batches, without asking the runner."""
        position = self.position
        is_at_end = position is not None and (position.is_at_end or part.index >= (self.steps or 0))
        return part.is_over or is_at_end

    def may_have_more(self, part: EpochPart) -> bool:
        """Return whether to expect another batch; if their number is unknown, also after the last one."""
        return self.expected is None or part.done < self.expected

    def are_cut_short(self, part: EpochPart) -> bool:
        """Return whether an epoch has had batches, but fewer than it wants."""
        return self.steps is not None and 0 < part.done < self.steps


class FitSchedule(NamedTuple):
    """The epochs of a call of `fit`, and the batches that each of them trains and tests on."""

    epochs: int
    initial_epoch: int
    batches: EpochBatches
    test_batches: EpochBatches
    validated: int | frozenset[int]

    def validates(self, epoch: int) -> bool:
        """Return whether to evaluate after an epoch."""
        if isinstance(self.validated, int):
            return (epoch + 1) % self.validated == 0
        return epoch + 1 in self.validated


def run_batches(
    name: str,
    phase: Phase,
    model: Any,
    batches: EpochBatches,
    part: EpochPart,
    *,
    calls: Any,
    before: int = 0,
    are_own: bool = False,
    together: int | None = None,
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Run an epoch; yield after each execution how many batches are done, and the logs of its last batch.

    At the end, the logs of `part` are the metrics' results.

    Args:
        name: train or test.
        phase: The steps to run, and their runner.
        model: The model.
        batches: The batches to take.
        part: The part of the epoch that is done already.
        calls: Keras's list of callbacks; None for a config-driven job, which counts steps in its own way.
        before: How many steps earlier epochs have taken, for the profiler's recordings.
        are_own: Whether callbacks are the user's own, which may read metrics and write variables between two
            executions.
        together: The steps of an execution; those that the model is compiled with if None.
    """
    step, runner, position = phase.step, phase.runner, batches.position
    together = steps_per_execution(model) if together is None else together
    if part.totals is None:
        part.totals = step.begin()
    # Keras 3 runs whole executions.
    left = batches.steps_left(part, 1 if calls is None or is_keras_2(model) else together)
    running = runner.epoch(left, lambda: together, part.totals, repeats=batches.repeats)
    running = name_steps(running, before + part.done) if name == "train" else running
    with contextlib.closing(running):
        while True:
            are_taken = batches.are_taken(part)
            # Before the steps, which may need what a callback sets here. If the number of batches is unknown,
            # there is one call too many after the last batch, as in Keras.
            if not (are_taken or part.is_leaving) and batches.may_have_more(part):
                _call(calls, f"on_{name}_batch_begin", part.index)
            if are_own and part.done:
                runner.settle_writes()
            execution = None if are_taken else next(running, None)
            if execution is None:
                break
            ran, part.totals = execution
            if position is not None:
                position.seen += together
            part.logs = step.batch_logs(part.totals)
            part.done += ran
            count(model, name, ran)
            last = last_index(model, part.index, ran)
            if are_own:
                step.store(part.totals)
            _call(calls, f"on_{name}_batch_end", last, part.logs)
            part.index = last + 1
            try:
                yield part.done, part.logs
            except GeneratorExit:  # the caller ends the epoch here
                part.end(step)
                raise
        if not (part.is_leaving or part.is_over):
            if position is not None:
                position.end_epoch(runner, missing=0 if are_taken else together)
            if calls is not None and batches.are_cut_short(part):
                warnings.warn(RAN_OUT, stacklevel=3)
    part.end(step)


def _call(calls: Any, name: str, *arguments: Any) -> None:
    """Call a method of Keras's list of callbacks, if there is a list."""
    if calls is not None:
        getattr(calls, name)(*arguments)


def steps_per_execution(model: Any) -> int:
    """Return the steps_per_execution that the model is compiled with; 1 for a model that is not compiled."""
    value = compiled_steps_per_execution(model)
    if value is None:  # as Keras 2 has it for such a model
        return 1
    # In Keras 2 it is a variable, which may be mirrored.
    return value if isinstance(value, int) else int(fetch(value))


def first_batches(data: Data, model: Any, strategy: tf.distribute.Strategy, steps: int | None) -> Data:
    """Return the first batches of data, in whole executions, where asynchronous workers would take any.

    A function makes each worker's own part, of which nobody knows what comes first.
    """
    if steps is None or not is_asynchronous(strategy) or not isinstance(data, tf.data.Dataset):
        return data
    together = 1 if is_keras_2(model) else steps_per_execution(model)
    return data.take(-(-steps // together) * together)


def last_index(model: Any, begun: int, ran: int) -> int:
    """Return the index of an execution's last step, as callbacks get it.

    Keras 3 counts an execution as a whole one, even if the end of the data cuts it short.
    """
    return begun + (ran if is_keras_2(model) else steps_per_execution(model)) - 1


_Totals = TypeVar("_Totals", bound=Totals)


def name_steps(
    executions: Generator[tuple[int, _Totals], None, None], done: int
) -> Generator[tuple[int, _Totals], None, None]:
    """Yield the executions of a runner; the profiler records each with the number of its first step."""
    try:
        while True:
            with tf.profiler.experimental.Trace(STEP, step_num=done + 1, _r=1) as recorded:
                execution = next(executions, None)
                recorded.set_metadata(steps=0 if execution is None else execution[0])
            if execution is None:
                return
            done += execution[0]
            yield execution
    finally:
        executions.close()
