"""Restore a run of `fit` from its newest checkpoint: variables, callbacks and the History, on all workers."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist._utils.write_files import remove_partial, storage_errors
from tfdist.training.checkpoints.checkpoint import (
    ABOUT,
    Checkpoint,
    check_variables,
    find_newest,
)
from tfdist.training.checkpoints.checkpoint_facts import Facts, raise_together, refuse_other
from tfdist.training.checkpoints.rounding_errors import restore_rounding_errors
from tfdist.training.keras.callback_states import OF_CALLBACK, from_plain, load_states
from tfdist.training.keras.variables_of_run import State, set_learning_rate
from tfdist.training.workers.exchange_numbers import take_from_chief

EPOCH = "epoch/"  # the prefix of the metrics' values in a checkpoint


class ResumedRun:
    """A run that continues from its newest checkpoint, whose files are on the chief alone.

    Attributes:
        facts: The facts of the checkpoint.
        metrics: The values of the metrics of the epoch so far, after `read`.
    """

    def __init__(
        self, found: Checkpoint | None, facts: Facts, strategy: tf.distribute.Strategy, *, is_chief: bool
    ) -> None:
        """Store a checkpoint, None on other workers than the chief, and its facts."""
        self._found, self.facts = found, facts
        self._strategy, self._is_chief = strategy, is_chief
        self.metrics: list[Any] = []
        self._values: list[Any] = []
        self._weights: dict[str, Any] = {}

    @classmethod
    def find(cls, folder: Path, strategy: tf.distribute.Strategy, *, is_chief: bool) -> "ResumedRun | None":
        """Return the run of the chief's newest complete checkpoint; None if there is none.

        Raises:
            ConfigError: The facts are malformed.
        """
        found: list[Checkpoint | None] = [None]

        def find() -> dict[str, Any]:
            with storage_errors(folder):
                if folder.is_dir():
                    remove_partial(folder)
                found[0] = newest = find_newest(folder)
            if newest is None:
                return {}
            facts = {**newest.facts, "variables": newest.variables}
            Facts.of(facts, str(newest.folder / ABOUT))
            return facts

        facts = raise_together(strategy, find, is_chief=is_chief)
        return cls(found[0], Facts.of(facts, str(folder)), strategy, is_chief=is_chief) if facts else None

    def is_over(self, epochs: int) -> bool:
        """Return whether the checkpoint is that of the end of the training."""
        return self.facts.is_stopped or self.facts.place.epoch >= epochs

    def check(self, identity: Mapping[str, Any], state: State) -> None:
        """Compare what must stay the same with what it is now.

        Raises:
            ConfigError: The checkpoint is one of another model, of other data or of other settings.
        """

        def compare() -> None:
            if self._found is None:
                return
            refuse_other(str(self._found.folder), self.facts.identity, identity)
            variables = [
                entry for entry in self._found.variables if not entry[0].startswith((EPOCH, OF_CALLBACK))
            ]
            check_variables(
                dataclasses.replace(self._found, variables=tuple(variables)),
                state.values(),
                whose="the model of this script",
                remedy="Name another folder, or use the same model",
            )

        raise_together(self._strategy, compare, is_chief=self._is_chief)

    def read(self) -> None:
        """Read all values on the chief, and send them to the other workers."""
        values: list[Any] = [tf.zeros(shape, dtype) for _, shape, dtype in self.facts.variables]
        if self._found is not None:
            values = self._found.read()
        values = take_from_chief(self._strategy, values, is_chief=self._is_chief)
        names = [name for name, _, _ in self.facts.variables]
        named = dict(zip(names, values, strict=True))
        self.metrics = [value for name, value in named.items() if name.startswith(EPOCH)]
        self._weights = {name: value for name, value in named.items() if name.startswith(OF_CALLBACK)}
        self._values = values[: len(names) - len(self.metrics) - len(self._weights)]
        folder = None if self._found is None else self._found.folder
        restore_rounding_errors(self._strategy, folder, is_chief=self._is_chief)

    def restore_variables(self, state: State, model: Any, learning_rate: float | None) -> None:
        """Assign the values of all variables; `learning_rate` is the one that the script sets now."""
        state.assign(self._values)
        if learning_rate != self.facts.learning_rate and learning_rate is not None:
            set_learning_rate(model, learning_rate)

    def restore_callbacks(self, callbacks: Sequence[Any], model: Any) -> None:
        """Set the states of callbacks."""
        load_states(callbacks, model, self.facts.callbacks, self._weights)

    def restore_history(self, history: Any) -> None:
        """Set the epochs and the values of Keras's History."""
        history.epoch = list(self.facts.epochs)
        history.history = {name: from_plain(values) for name, values in self.facts.history.items()}
