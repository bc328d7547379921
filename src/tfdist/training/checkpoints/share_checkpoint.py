"""Read the newest checkpoint on the chief, whose disk may be the only one that has it, for all workers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import tensorflow as tf

from tfdist._utils.write_files import remove_partial, storage_errors
from tfdist.errors import ConfigError
from tfdist.training.checkpoints.checkpoint_files import (
    ABOUT,
    OF_EPOCH,
    Checkpoint,
    Entry,
    find_newest,
    is_state,
)
from tfdist.training.checkpoints.rounding_errors import restore_rounding_errors
from tfdist.training.keras.callback_states import OF_CALLBACK
from tfdist.training.workers.call_on_chief import call_on_chief
from tfdist.training.workers.exchange_numbers import take_from_chief

FactsT = TypeVar("FactsT", bound=msgspec.Struct)


class _Message(msgspec.Struct):
    """A checkpoint as the chief tells the other workers of it."""

    step: int
    facts: dict[str, Any]
    entries: list[Entry]


class Values(NamedTuple):
    """The values in a checkpoint: the state, the totals of the epoch so far, and arrays of callbacks."""

    state: list[Any]
    totals: list[Any]
    of_callbacks: dict[str, Any]


NO_VALUES = Values([], [], {})


class SharedCheckpoint(Generic[FactsT]):
    """A checkpoint that all workers know and the chief reads; all workers call the methods.

    Attributes:
        step: How many steps were done.
        facts: Further facts that the run needs to resume.
    """

    def __init__(
        self,
        found: Checkpoint | None,
        step: int,
        facts: FactsT,
        entries: Sequence[Entry],
        strategy: tf.distribute.Strategy,
    ) -> None:
        """Store a checkpoint, None on other workers than the chief, and what it says of itself."""
        self.step, self.facts = step, facts
        self._found, self._entries, self._strategy = found, entries, strategy

    @classmethod
    def find(
        cls,
        folder: Path,
        kind: type[FactsT],
        strategy: tf.distribute.Strategy,
        *,
        of: str,
        is_chief: bool,
        check: Callable[[Checkpoint, FactsT], object] = lambda _, __: None,
    ) -> "SharedCheckpoint[FactsT] | None":
        """Return the chief's newest complete checkpoint; None if there is none.

        Args:
            folder: The folder of all checkpoints of a run.
            kind: The class of the facts.
            strategy: The strategy that trains.
            of: The writer of such checkpoints, for the error.
            is_chief: Whether this process reads.
            check: Called on the chief with the checkpoint and its facts; its error is raised on all workers.

        Raises:
            ConfigError: The facts are malformed.
        """
        newest: list[Checkpoint] = []

        def find() -> dict[str, Any]:
            with storage_errors(folder):
                if folder.is_dir():
                    remove_partial(folder)
                found = find_newest(folder)
            if found is None:
                return {}
            check(found, _converted(found, kind, of))
            newest.append(found)
            return {"step": found.step, "facts": found.facts, "entries": found.variables}

        told = call_on_chief(strategy, find, is_chief=is_chief)
        if not told:
            return None
        message = msgspec.convert(told, _Message)
        facts = msgspec.convert(message.facts, kind)
        return cls(newest[0] if newest else None, message.step, facts, message.entries, strategy)

    def check(self, compare: Callable[[Checkpoint], object]) -> None:
        """Call a function with the checkpoint on the chief; raise its error on all workers."""

        def run() -> None:
            if self._found is not None:
                compare(self._found)

        call_on_chief(self._strategy, run, is_chief=self._found is not None)

    def read(self) -> Values:
        """Read all values on the chief, and send them to the other workers; restore the rounding errors."""
        found, values = self._found, list[Any]()
        self.check(lambda checkpoint: values.extend(checkpoint.read(checkpoint.variables)))
        if found is None:
            values = [tf.zeros(shape, dtype) for _, shape, dtype in self._entries]
        is_chief = found is not None
        values = take_from_chief(self._strategy, values, is_chief=is_chief)
        restore_rounding_errors(self._strategy, None if found is None else found.folder, is_chief=is_chief)
        named = [(name, value) for (name, _, _), value in zip(self._entries, values, strict=True)]
        of_callbacks = {name: value for name, value in named if name.startswith(OF_CALLBACK)}
        totals = [value for name, value in named if name.startswith(OF_EPOCH)]
        state = [value for name, value in named if is_state(name)]
        return Values(state, totals, of_callbacks)


def _converted(found: Checkpoint, kind: type[FactsT], of: str) -> FactsT:
    try:
        return msgspec.convert(found.facts, kind)
    except msgspec.ValidationError as error:
        remedy = "Remove this checkpoint to resume from another, or begin the run in another folder"
        problem = f"is not a checkpoint of {of}: {error}"
        raise ConfigError(str(found.folder / ABOUT), problem, remedy=remedy) from None
