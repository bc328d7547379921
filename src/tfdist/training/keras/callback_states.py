"""Keep the states of callbacks over a restart of the process, by their plain attributes."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import is_of_keras
from tfdist.errors import ConfigError, shown

# Public attributes of Keras's callbacks that change during the training.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch"),
    "ModelCheckpoint": ("best",),
    "ReduceLROnPlateau": ("wait", "cooldown_counter", "best"),
}
_STATE_BY_FILES = ("BackupAndRestore", "SwapEMAWeights")
_WEIGHTS = "best_weights"  # of EarlyStopping: a list of arrays
OF_CALLBACK = "callback/"  # the prefix of these arrays in a checkpoint
_log = logging.getLogger("tfdist")


class CallbackState(msgspec.Struct):
    """The state of a callback.

    Attributes:
        kind: The class, and the value that it watches; empty in a checkpoint of an earlier tfdist.
        values: Its attributes as plain values.
        own: What its get_state() returns; None if it has none.
        size: The bytes of a CSVLogger's file; None if it has none.
    """

    kind: str = ""
    values: dict[str, Any] = {}
    own: dict[str, Any] | None = None
    size: int | None = None


def check_callbacks(callbacks: Sequence[Any], model: Any) -> None:
    """Refuse callbacks that do not go with checkpoints, and name those whose attributes are not kept."""
    unknown = []
    for callback in callbacks:
        name = type(callback).__name__
        is_kerass = isinstance(callback, tuple(_classes(model, _STATE_BY_FILES)))
        if is_kerass:
            problem = f"{name} and CheckpointAndResume both change the weights of a resumed run"
            raise ConfigError("callbacks", problem, remedy=f"Leave {name} out")
        if not is_of_keras(type(callback)) and not _has_own_state(callback):
            unknown.append(name)
    if unknown:
        _log.warning(
            "fit: a checkpoint does not hold the attributes of %s. If a resumed run needs them, define "
            "get_state(), which returns a dict of numbers and texts, and set_state(state)",
            ", ".join(dict.fromkeys(unknown)),
        )


def states_of(callbacks: Sequence[Any], model: Any) -> list[CallbackState]:
    """Return the state of each callback, without weights."""
    states = []
    for callback in callbacks:
        kind = _kind(callback)
        both = [_attributes(callback, model), callback.get_state() if _has_own_state(callback) else None]
        values, own = (
            state and {name: as_plain(value, f"the state of {kind}, {name}") for name, value in state.items()}
            for state in both
        )
        states.append(CallbackState(kind, values or {}, own, _size_of_log(callback, model)))
    return states


def weights_of(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return the best weights that EarlyStopping keeps, by names for a checkpoint."""
    kept = {}
    for place, callback in enumerate(callbacks):
        best = getattr(callback, _WEIGHTS, None) if _is_early_stopping(callback) else None
        for number, value in enumerate(best or ()):
            kept[f"{OF_CALLBACK}{place}/{number}"] = tf.convert_to_tensor(value)
    return kept


def load_states(
    callbacks: Sequence[Any], model: Any, states: Sequence[CallbackState], weights: Mapping[str, Any]
) -> None:
    """Set the states of callbacks, each that of the first callback of its kind that is left.

    A callback that the run did not have before begins without a state, and one that it has no longer is left
    out.
    """
    if any(not state.kind for state in states):
        _log.warning("the checkpoint does not tell whose states of callbacks it has: callbacks begin again")
    for callback, place in _with_states(callbacks, states):
        state = states[place]
        values = {name: from_plain(value) for name, value in state.values.items()}
        if _has_own_state(callback):  # which earlier versions have kept in place of the attributes
            callback.set_state(values if state.own is None else from_plain(state.own))
        for name in _attributes(callback, model):
            if name in values:
                setattr(callback, name, values[name])
        mine = [np.asarray(value) for name, value in weights.items() if name.split("/")[1] == str(place)]
        if mine and _is_early_stopping(callback):
            setattr(callback, _WEIGHTS, mine)


def _with_states(callbacks: Sequence[Any], states: Sequence[CallbackState]) -> Iterator[tuple[Any, int]]:
    """Yield each callback that has a state, with the place of it: the first of its kind that is left."""
    left = dict(enumerate(states))
    for callback in callbacks:
        kind = _kind(callback)
        place = next((place for place, state in left.items() if state.kind == kind), None)
        if place is not None:
            del left[place]
            yield callback, place


def _kind(callback: Any) -> str:
    """Return the class of a callback, and which value it watches: a run may have several of one class."""
    monitor = getattr(callback, "monitor", None)
    return type(callback).__name__ + (f" of {monitor}" if isinstance(monitor, str) else "")


def as_plain(value: Any, where: str) -> Any:
    """Return a value as JSON has it; an array as a dict."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if tf.is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return array.item() if array.ndim == 0 else {"array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, (list, tuple)):
        return [as_plain(part, where) for part in value]
    if isinstance(value, Mapping) and "array" not in value:
        return {str(name): as_plain(part, where) for name, part in value.items()}
    raise ConfigError(where, expected="numbers, texts and arrays of numbers", received=shown(value))


def from_plain(value: Any) -> Any:
    """Return the value that `as_plain` was given."""
    if isinstance(value, list):
        return [from_plain(part) for part in value]
    if isinstance(value, dict):
        if set(value) == {"array", "dtype"}:
            return np.asarray(value["array"], value["dtype"])
        return {name: from_plain(part) for name, part in value.items()}
    return value


def _attributes(callback: Any, model: Any) -> dict[str, Any]:
    for kind, names in _ATTRIBUTES.items():
        if isinstance(callback, tuple(_classes(model, [kind]))):
            return {name: getattr(callback, name) for name in names if hasattr(callback, name)}
    return {}


def _classes(model: Any, names: Sequence[str]) -> list[Any]:
    module = keras_of(model).callbacks
    return [getattr(module, name) for name in names if hasattr(module, name)]


def continue_logs(callbacks: Sequence[Any], model: Any, states: Sequence[CallbackState]) -> None:
    """Make CSVLoggers append to their files, of which each keeps what it had when the states were noted.

    Later rows are of epochs that are trained again.
    """
    for callback in callbacks:
        if _is_csv_logger(callback, model):
            callback.append = True
    for callback, place in _with_states(callbacks, states):
        noted, size = states[place].size, _size_of_log(callback, model)
        if noted is not None and size is not None and noted < size:
            with tf.io.gfile.GFile(callback.filename, "rb") as file:
                kept = file.read(noted)
            with tf.io.gfile.GFile(callback.filename, "wb") as file:
                file.write(kept)


def _size_of_log(callback: Any, model: Any) -> int | None:
    """Return the bytes of a CSVLogger's file; None if it has none, or if it is no CSVLogger."""
    if not _is_csv_logger(callback, model) or not tf.io.gfile.exists(callback.filename):
        return None
    return int(tf.io.gfile.stat(callback.filename).length)


def _is_csv_logger(callback: Any, model: Any) -> bool:
    return isinstance(callback, keras_of(model).callbacks.CSVLogger)


def _is_early_stopping(callback: Any) -> bool:
    return any(kind.__name__ == "EarlyStopping" and is_of_keras(kind) for kind in type(callback).__mro__)


def _has_own_state(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")
