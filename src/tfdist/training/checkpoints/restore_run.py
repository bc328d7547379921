"""Restore a run of `fit` from its newest checkpoint: variables, callbacks and the History, on all workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.training.checkpoints.checkpoint import Checkpoint, check_variables
from tfdist.training.checkpoints.checkpoint_facts import Facts, refuse_other
from tfdist.training.checkpoints.share_checkpoint import SharedCheckpoint, Values
from tfdist.training.keras.callback_states import from_plain, load_states
from tfdist.training.keras.variables_of_run import State, set_learning_rate


class ResumedRun:
    """A run that continues from its newest checkpoint, whose files are on the chief alone.

    Attributes:
        facts: The facts of the checkpoint.
    """

    def __init__(self, checkpoint: SharedCheckpoint[Facts]) -> None:
        self._checkpoint, self.facts = checkpoint, checkpoint.facts
        self._values = Values([], [], {})

    @classmethod
    def find(cls, folder: Path, strategy: tf.distribute.Strategy, *, is_chief: bool) -> "ResumedRun | None":
        """Return the run of the chief's newest complete checkpoint; None if there is none.

        Raises:
            ConfigError: The facts are malformed.
        """
        found = SharedCheckpoint.find(folder, Facts, strategy, of="fit", is_chief=is_chief)
        return None if found is None else cls(found)

    @property
    def totals(self) -> list[Any]:
        """Return the values of the metrics of the epoch so far, after `read`."""
        return self._values.totals

    def is_over(self, epochs: int) -> bool:
        """Return whether the checkpoint is that of the end of the training."""
        return self.facts.is_stopped or self.facts.place.epoch >= epochs

    def check(self, identity: Mapping[str, Any], state: State) -> None:
        """Compare what must stay the same with what it is now.

        Raises:
            ConfigError: The checkpoint is one of another model, of other data or of other settings.
        """

        def compare(found: Checkpoint) -> None:
            refuse_other(str(found.folder), self.facts.identity, identity)
            remedy = "Name another folder, or use the same model"
            check_variables(found, state.values(), whose="the model of this script", remedy=remedy)

        self._checkpoint.check(compare)

    def read(self) -> None:
        """Read all values on the chief, and send them to the other workers."""
        self._values = self._checkpoint.read()

    def restore_variables(self, state: State, model: Any, learning_rate: float | None) -> None:
        """Assign the values of all variables; `learning_rate` is the one that the script sets now."""
        state.assign(self._values.state)
        if learning_rate != self.facts.learning_rate and learning_rate is not None:
            set_learning_rate(model, learning_rate)

    def restore_callbacks(self, callbacks: Sequence[Any], model: Any) -> None:
        """Set the states of callbacks."""
        load_states(callbacks, model, self.facts.callbacks, self._values.of_callbacks)

    def restore_history(self, history: Any) -> None:
        """Set the epochs and the values of Keras's History."""
        history.epoch = list(self.facts.epochs)
        history.history = {name: from_plain(values) for name, values in self.facts.history.items()}
