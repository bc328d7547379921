"""The batches that epochs take of their data: how many, from where, and the part that is done."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.training.arguments import whole_number
from tfdist.training.data.distribute import Data, known_steps
from tfdist.training.keras.steps.step_base import KerasStep


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
