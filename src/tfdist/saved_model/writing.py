"""Write a trained model in the formats that were asked for, all of them or none."""

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.exports import FILES, set_latest, write_metadata
from tfdist.files import fresh_folder
from tfdist.saved_model.checking import check
from tfdist.saved_model.signatures import Served

__all__ = ["export"]


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
    # Where the fresh processes compute: a GPU may round in convolutions, and that is not what is in question.
    with tf.device("CPU:0"):
        answer = served.on_pixels(tf.uint8)(image=tf.constant(images), key=_keys(len(images)))
    wanted = {name: value.numpy() for name, value in answer.items()}
    final = folder / str(step)
    with fresh_folder(final) as written:
        with _told_in_short(written):
            tf.saved_model.save(served, str(written), signatures=served.signatures())
        check("saved_model", written, images, wanted)
        for form in formats:
            path = written / FILES[form]
            with _told_in_short(path):
                _write(form, path, model, served)
            check(form, path, images, wanted, modules=_modules(model) if form == "keras" else ())
        about = {"step": step, "formats": ["saved_model", *formats], **metadata}
        write_metadata(written, image_shape=shape, about=about)
    set_latest(folder, final.name)
    return final


def _write(form: str, path: Path, model: Any, served: Served) -> None:
    if form == "tflite":
        path.write_bytes(_lite(served))
    elif tf.keras.__version__.startswith("2."):
        model.save(path, save_format="keras_v3")  # in 2.12 plain "keras" is HDF5 under another name
    else:
        model.save(path)


def _lite(served: Served) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the interpreter's new home, which converting does not need
        converter = tf.lite.TFLiteConverter.from_concrete_functions([served.on_pixels(tf.uint8)], served)
        try:
            return bytes(converter.convert())
        except Exception as error:  # the converter has classes of its own, which are not public
            problem = f"TensorFlow Lite cannot take this model: {str(error).splitlines()[0]}"
            raise ConfigError("export.formats: tflite", problem, remedy="Leave it out") from error


def _modules(model: Any) -> list[str]:
    """List the modules that a Keras file of the model needs: those of layers that are not Keras's own."""
    names = {type(layer).__module__ for layer in model._flatten_layers()}
    return sorted(name for name in names if name.partition(".")[0] not in ("keras", "tf_keras"))


def _keys(count: int) -> Any:
    return tf.range(count, dtype=tf.int64)


@contextlib.contextmanager
def _told_in_short(path: Path) -> Iterator[None]:
    """Let what the disk refuses look alike: TensorFlow has errors of its own, and HDF5 long ones."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(0, error.message.rpartition("; ")[2], str(path)) from error
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
