"""Write a trained model in the formats that were asked for, all of them or none."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.exports import FILES, set_latest, write_metadata
from tfdist.files import fresh_folder, storage_errors
from tfdist.saved_model.checking import check
from tfdist.saved_model.signatures import Served

__all__ = ["export", "try_formats"]


def export(
    model: Any,
    folder: Path,
    *,
    step: int,
    images: np.ndarray[Any, np.dtype[np.uint8]],
    metadata: Mapping[str, Any],
    formats: Sequence[str] = (),
) -> Path:
    """Write `folder/<step>` in one step, once fresh processes have loaded it and given the model's scores.

    Args:
        model: A Keras model of this process's own devices, from pixels to logits.
        folder: Where the exports of a run are kept; `latest` in it will lead to this one.
        step: The training step, which names the export.
        images: A few images as the data set has them, to compare the scores on.
        metadata: What is known of the model, for `metadata.json` beside it; with the names of its `classes`.
        formats: `keras`, `tflite` or both, to be written besides the SavedModel.

    Raises:
        StorageError: The disk refused.
        ConfigError: The model cannot be had in one of the formats.
        TfdistError: The export does not give the scores of the model.
    """
    shape = images.shape[1:]
    served = Served(model, shape)
    wanted = _answers(served, images)
    final = folder / str(step)
    with fresh_folder(final) as written:
        with _told_in_short(written):
            tf.saved_model.save(served, str(written), signatures=served.signatures())
        check("saved_model", written, images, wanted)
        for form in formats:
            _add(form, written, served, images, wanted)
        about = {"step": step, "formats": ["saved_model", *formats], **metadata}
        write_metadata(written, image_shape=shape, about=about)
    set_latest(folder, final.name)
    return final


def try_formats(model: Any, image_shape: tuple[int, ...], formats: Sequence[str]) -> None:
    """Say before a model is trained what `export` would refuse after it.

    Args:
        model: The model, from pixels to logits.
        image_shape: Height, width and channels.
        formats: As for `export`.

    Raises:
        ConfigError: The model cannot be had in one of the formats.
        TfdistError: What is written in one of them cannot be used by another process.
    """
    served, images = Served(model, image_shape), np.zeros((2, *image_shape), np.uint8)
    wanted = _answers(served, images)
    with tempfile.TemporaryDirectory(prefix="tfdist-try-") as folder, storage_errors(Path(folder)):
        for form in formats:
            _add(form, Path(folder), served, images, wanted)


def _answers(served: Served, images: Any) -> dict[str, Any]:
    # Where the fresh processes compute: a GPU may round in convolutions, and that is not what is in question.
    with tf.device("CPU:0"):
        key = tf.range(len(images), dtype=tf.int64)
        answer = served.on_pixels(tf.uint8)(image=tf.constant(images), key=key)
    return {name: value.numpy() for name, value in answer.items()}


def _add(form: str, folder: Path, served: Served, images: Any, wanted: Mapping[str, Any]) -> None:
    """Write a format beside the SavedModel, and check it."""
    path, model = folder / FILES[form], served.model
    with _told_in_short(path):
        if form == "tflite":
            path.write_bytes(_lite(served))
        elif tf.keras.__version__.startswith("2."):
            model.save(path, save_format="keras_v3")  # in 2.12 plain "keras" is HDF5 under another name
        else:
            model.save(path)
    check(form, path, images, wanted, modules=_modules(model) if form == "keras" else ())


def _lite(served: Served) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([served.on_pixels(tf.uint8)], served)
    try:
        with _silent():
            return bytes(converter.convert())
    except Exception as error:  # the converter has classes of its own, which are not public
        told = str(error).splitlines()
        lacking = next((line for line in told if line.startswith("TF Select ops: ")), told[0])
        problem = f"TensorFlow Lite cannot take this model: {lacking.replace('TF Select ops', 'it has no')}"
        remedy = "Leave it out; its operations are for float32"
        raise ConfigError("export.formats: tflite", problem, remedy=remedy) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drop what goes to standard error: the converter's C++ writes pages there, whatever the log level."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _modules(model: Any) -> list[str]:
    """List the modules that a Keras file of the model needs: those of layers that are not Keras's own."""
    names = {type(layer).__module__ for layer in model._flatten_layers()}
    return sorted(name for name in names if name.partition(".")[0] not in ("keras", "tf_keras"))


@contextlib.contextmanager
def _told_in_short(path: Path) -> Iterator[None]:
    """Let what the disk refuses look alike: TensorFlow has errors of its own, and HDF5 long ones."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(0, error.message.rpartition("; ")[2], str(path)) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno or 0, reason, str(path)) from error
