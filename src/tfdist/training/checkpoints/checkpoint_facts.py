"""Define the facts in a checkpoint of `fit`, and compare them with those of a run."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import tensorflow as tf

from tfdist.errors import ConfigError, StorageError, TfdistError, shown
from tfdist.training.runners.place_in_data import PlaceInData
from tfdist.training.workers.exchange_numbers import take_text_from_chief


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
        variables: Name, shape and dtype of all values in the checkpoint.
    """

    identity: dict[str, Any]
    place: Place
    logs: dict[str, Any]
    history: dict[str, list[Any]]
    epochs: list[int]
    callbacks: list[dict[str, Any]]
    learning_rate: float | None
    seed: int
    is_stopped: bool = False
    variables: list[tuple[str, tuple[int, ...], str]] = []

    @classmethod
    def of(cls, facts: Mapping[str, Any], where: str) -> "Facts":
        """Return the facts that a checkpoint holds.

        Raises:
            ConfigError: They are malformed.
        """
        try:
            return msgspec.convert(facts, cls)
        except msgspec.ValidationError as error:
            remedy = "Name another folder, or remove this checkpoint to resume from another"
            raise ConfigError(where, f"is not a checkpoint of fit: {error}", remedy=remedy) from None

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as a checkpoint holds them, which lists its variables itself."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        del facts["variables"]
        return facts


def raise_together(
    strategy: tf.distribute.Strategy, act: Callable[[], Any], *, is_chief: bool
) -> dict[str, Any]:
    """Call a function on the chief, and return its result on all workers, or raise its error on all of them.

    The result is None or a dict of plain values. If the chief alone raised, the others would wait for it.
    """
    message: dict[str, Any] = {}
    if is_chief:
        try:
            message = {"result": act() or {}}
        except (ConfigError, StorageError) as error:
            kind = type(error).__name__
            message = {"error": [kind, error.where, error.problem, error.remedy]}
    text = take_text_from_chief(strategy, json.dumps(message), is_chief=is_chief)
    message = json.loads(text)
    if "error" in message:
        kind, where, problem, remedy = message["error"]
        error_class: type[TfdistError] = StorageError if kind == "StorageError" else ConfigError
        raise error_class(where, problem, remedy=remedy)
    return dict(message["result"])


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
