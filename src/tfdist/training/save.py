"""Save a model so that every process of the cluster can load it in the next line."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of
from tfdist._utils.object_store import upload
from tfdist._utils.write_files import fresh_path, storage_errors, temporary_folder
from tfdist.errors import ConfigError, shown
from tfdist.strategies.current_cluster_and_strategy import is_chief
from tfdist.training.error_messages.lost_task_errors import public_call
from tfdist.training.workers.exchange_numbers import wait_for_all
from tfdist.training.workers.same_call import check_same_call, strategy_of_call

_SUFFIXES = (".keras", ".h5", "")


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a Keras model on the chief, and return on all processes when the file is complete.

    All processes that run the script must call this function: some variables have a part on every replica.

    Args:
        model: The model.
        path: The path to write to. Its suffix selects the format: `model.keras` and `model.h5` hold the
            model, `model.weights.h5` its weights, and a name without a suffix is the folder of a SavedModel
            that TensorFlow Serving loads. An existing file or folder is replaced in one step.

    Raises:
        ConfigError: The path has another suffix, the model is not built, or a worker is not connected to the
            others yet.
        StorageError: Writing the file failed.
        TaskLost: A worker is gone.
    """
    target = os.fspath(path)
    suffix = Path(target).suffix
    if suffix not in _SUFFIXES:
        expected = "a path that ends in .keras, .h5, .weights.h5, or in no suffix for a SavedModel"
        raise ConfigError("save", expected=expected, received=shown(target))
    scheme, is_address, _ = target.partition("://")
    if is_address and scheme not in tf.io.gfile.get_registered_schemes():
        expected = "a path, or an address of a store that TensorFlow can write to"
        remedy = "Import the package that adds it, such as tensorflow_io, or save to a path"
        raise ConfigError("save", expected=expected, received=shown(target), remedy=remedy)
    keras_of(model)  # or an error
    if not model.built:
        remedy = "Call fit, or the model itself on a batch, before"
        raise ConfigError("save", f"{model.name} is not built: it has no weights yet", remedy=remedy)
    strategy = strategy_of_call("save")
    with public_call("save", strategy):
        check_same_call(strategy)
        with _place_to_write(target) as place:
            _write(model, place)
        wait_for_all(strategy)


@contextlib.contextmanager
def _place_to_write(target: str) -> Iterator[str]:
    """Yield the path to write to; on the chief, the result then replaces the target."""
    if not is_chief():
        with temporary_folder("tfdist-") as scratch, storage_errors(Path(scratch)):
            yield str(Path(scratch, Path(target).name))
    elif "://" in target and _is_folder(target):
        yield target
    elif "://" in target:  # HDF5, and some versions of Keras, would write a local file of this name
        folder, _, name = target.rpartition("/")
        with temporary_folder("tfdist-") as scratch, storage_errors(Path(scratch)):
            yield str(Path(scratch, name))
            upload({name: Path(scratch, name)}, folder)
    else:
        with fresh_path(Path(target).absolute()) as written:
            yield str(written)


def _is_folder(target: str) -> bool:
    """Return whether a path is that of a SavedModel; objects of a store appear when they are complete."""
    return not Path(target).suffix


def _write(model: Any, place: str) -> None:
    if place.endswith(".weights.h5"):
        model.save_weights(place)
    elif not _is_folder(place) or is_keras_2(model):
        model.save(place)
    else:
        model.export(place, verbose=False)
