"""Count the epochs of a call of `fit`, and the batches that each of them trains and tests on."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tfdist.training.arguments import validation_epochs, whole_number
from tfdist.training.data import Data, known_steps
from tfdist.training.run_batches import DataPosition

__all__ = ["FitSchedule"]


class FitSchedule(NamedTuple):
    """The epochs of a call of `fit`, and how many batches each of them trains and tests on."""

    epochs: int
    initial_epoch: int
    steps: int | None
    expected: int | None
    test_steps: int | None
    test_expected: int | None
    validated: int | frozenset[int]
    repeats: bool
    position: DataPosition | None
    test_position: DataPosition | None

    @classmethod
    def of(
        cls,
        x: Data,
        epochs: Any,
        initial_epoch: Any,
        steps: Any,
        validation_data: Data | None,
        validation_steps: Any,
        validation_freq: Any,
        repeats: bool,
        begin: Callable[[Data, int | None], DataPosition | None],
    ) -> "FitSchedule":
        """Check those arguments of `fit` that are counts, and return the schedule."""
        if steps is not None:
            steps = whole_number("steps_per_epoch", steps, 1)
        if validation_steps is not None:
            validation_steps = whole_number("validation_steps", validation_steps, 1)
        test_expected = validation_steps
        if validation_data is not None and validation_steps is None:
            test_expected = known_steps(validation_data, "validation_steps")
        return cls(
            whole_number("epochs", epochs, 0),
            whole_number("initial_epoch", initial_epoch, 0),
            steps,
            known_steps(x, "steps_per_epoch") if steps is None else steps,
            validation_steps,
            test_expected,
            validation_epochs(validation_freq),
            repeats,
            None if repeats else begin(x, steps),
            None if validation_data is None else begin(validation_data, validation_steps),
        )

    def validates(self, epoch: int) -> bool:
        """Return whether to evaluate after an epoch."""
        if isinstance(self.validated, int):
            return (epoch + 1) % self.validated == 0
        return epoch + 1 in self.validated
