"""Define the facts in a checkpoint of `fit`, and compare them with those of a run."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tfdist.errors import ConfigError, shown
from tfdist.training.keras.callback_states import CallbackState
from tfdist.training.runners.place_in_data import PlaceInData


class Place(msgspec.Struct):
    """The place of a run in its epochs and data.

    Attributes:
        step: The number of batches of all epochs so far.
        epoch: The epoch, counted from 0.
        is_within: Whether the epoch has begun.
        done: The batches of the epoch so far.
        index: The index of the next batch, as callbacks get it.
        data: The place in the data.
        size: The number of batches in the data, where epochs of a number of steps count them.
        seen: The batches that these epochs have counted since the data began.
        tests: The number of evaluations so far.
        is_over: Whether the last batch of the epoch is done, and its evaluation is not.
    """

    step: int
    epoch: int
    is_within: bool
    done: int
    index: int
    data: PlaceInData
    size: int | None
    seen: int
    tests: int
    is_over: bool = False


class Facts(msgspec.Struct):
    """The facts in a checkpoint of `fit` beside the values of variables.

    Attributes:
        identity: What must stay the same: the data and some settings.
        place: Where the run is.
        logs: The logs of the epoch so far.
        history: The values of Keras's History.
        epochs: The epochs of Keras's History.
        callbacks: The state of each callback.
        learning_rate: The learning rate with which the run began, where it is a number.
        seed: The seed by which arrays are shuffled, if the user has set none.
        is_stopped: Whether a callback has ended the training.
    """

    identity: dict[str, Any]
    place: Place
    logs: dict[str, Any]
    history: dict[str, list[Any]]
    epochs: list[int]
    callbacks: list[CallbackState]
    learning_rate: float | None
    seed: int
    is_stopped: bool = False


def refuse_other(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ConfigError if a setting or the data differ from those of a checkpoint.

    Data are compared by a digest, which would tell a reader nothing.
    """
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old != new:
            values = "" if name == "the data" else f": {shown(old)} before, {shown(new)} now"
            problem = f"is of a run in which {name} differed{values}"
            remedy = "Name another folder for this run, or use what the run began with"
            raise ConfigError(where, problem, remedy=remedy)
