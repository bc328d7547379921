"""Define the moments of `fit` in which checkpoints are saved and resumed; without them, nothing happens."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import forget_epoch_to_resume
from tfdist.training.data.distribute import Data
from tfdist.training.epoch_batches import EpochPart, FitSchedule
from tfdist.training.keras.callbacks import follow_chief
from tfdist.training.model_session import Phase, Session


class FitHooks:
    """Do nothing at each of these moments; `FitCheckpoints` saves and resumes in them."""

    seed: int | None = None  # of the order of its arrays
    are_saved = False

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, callbacks: Sequence[Any]) -> None:
        self._model, self._strategy, self._callbacks = model, strategy, callbacks

    @property
    def logs(self) -> dict[str, Any]:
        """Return the logs of the training that is resumed."""
        return {}

    @property
    def done_of_first_epoch(self) -> int:
        """Return how many steps of the epoch that is resumed are done."""
        return 0

    def check_order(self, x: Any, *, shuffle: bool | str) -> None:
        """Check that the data have the same order in each process."""

    def checked(self, data: Data, validation_data: Data | None) -> Data:
        """Return the training data."""
        del validation_data
        return data

    def attach(
        self,
        session: Session,
        training: Phase,
        testing: Phase | None,
        schedule: FitSchedule,
        batch_size: int | None,
    ) -> None:
        """Restore what is resumed."""

    def begin(self, calls: Any, *, epochs: int, initial_epoch: int, steps: int | None) -> int:
        """Call the callbacks at the beginning, and return the first epoch."""
        del epochs
        forget_epoch_to_resume(self._model)
        calls.on_train_begin()
        return follow_chief(
            self._callbacks, self._model, self._strategy, initial_epoch=initial_epoch, steps=steps
        )

    def deferring(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for the epochs."""
        return contextlib.nullcontext()

    def begin_epoch(self, epoch: int) -> EpochPart:
        """Return the part of an epoch that is done."""
        del epoch
        return EpochPart()

    def leaves(self) -> bool:
        """Return whether all tasks agree to leave."""
        return False

    def after_execution(self) -> None:
        """Save after the steps of an execution, if it is time."""

    def after_batches(self) -> None:
        """Leave after the batches of an epoch, if that was agreed."""

    def after_tests(self) -> None:
        """Leave after an evaluation, if that was agreed."""

    def after_epoch(self, logs: Mapping[str, Any], *, is_last: bool, is_stopped: bool) -> None:
        """Save at the end of an epoch."""
