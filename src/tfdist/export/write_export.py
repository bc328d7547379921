"""Write a trained model in all requested formats, or in none of them."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_private import is_of_keras, layers_of
from tfdist._utils.redirected_output import redirected
from tfdist._utils.write_files import fresh_folder, storage_errors, temporary_folder
from tfdist.errors import ConfigError, first_line
from tfdist.export.check import check
from tfdist.export.export_folder import FILES, set_latest, write_metadata
from tfdist.export.signatures import Served
from tfdist.models.logits_or_probabilities import Outputs


def export(
    model: Any,
    folder: Path,
    *,
    step: int,
    is_only_one: bool = False,
    images: np.ndarray[Any, np.dtype[np.uint8]],
    metadata: Mapping[str, Any],
    formats: Sequence[str] = (),
    outputs: Outputs = "logits",
    modules: Sequence[str] = (),
) -> Path:
    """Write `folder/<step>` atomically, after a check that new processes compute the same scores with it.

    Args:
        model: A Keras model on this process's own devices, from pixels to logits or probabilities.
        folder: The folder of a run's exports; its `latest` will lead to this one.
        step: The training step, which is the export's name.
        is_only_one: Whether the export is `folder` itself, in place of `folder/<step>`.
        images: A few images of the data set, for the check.
        metadata: The contents of `metadata.json`, among them the names of the `classes`.
        formats: `keras`, `tflite` or both, to write besides the SavedModel.
        outputs: What the model returns; the scores of `probabilities` are the model's outputs as they are.
        modules: The modules of functions that the model has registered in Keras, besides those of its layers.

    Raises:
        StorageError: The disk is full or not writable.
        ConfigError: A format does not support the model.
        TfdistError: The export computes other scores than the model.
    """
    shape = images.shape[1:]
    served = Served(model, shape, outputs)
    wanted = _answers(served, images)
    final = folder if is_only_one else folder / str(step)
    with fresh_folder(final) as written:
        with _short_disk_errors(written):
            tf.saved_model.save(served, str(written), signatures=served.signatures())
        check("saved_model", written, images, wanted)
        for form in formats:
            _add(form, written, served, images, wanted, modules)
        about = {"step": step, "formats": ["saved_model", *formats], "outputs": outputs, **metadata}
        write_metadata(written, image_shape=shape, about=about)
    if not is_only_one:
        set_latest(folder, final.name)
    return final


def try_formats(
    model: Any,
    image_shape: tuple[int, ...],
    formats: Sequence[str],
    outputs: Outputs = "logits",
    modules: Sequence[str] = (),
) -> None:
    """Check before the training that `export` will support the formats; see its arguments.

    Raises:
        ConfigError: A format does not support the model.
        TfdistError: Another process cannot use the model in one of the formats.
    """
    served, images = Served(model, image_shape, outputs), np.zeros((2, *image_shape), np.uint8)
    wanted = _answers(served, images)
    with temporary_folder("tfdist-try-") as folder, storage_errors(Path(folder)):
        for form in formats:
            _add(form, Path(folder), served, images, wanted, modules)


def _answers(served: Served, images: Any) -> dict[str, Any]:
    # On the CPU, as in the new processes: a GPU may round in convolutions, which the check must not report.
    with tf.device("CPU:0"):
        key = tf.range(len(images), dtype=tf.int64)
        answer = served.on_pixels(tf.uint8)(image=tf.constant(images), key=key)
    return {name: value.numpy() for name, value in answer.items()}


def _add(
    form: str, folder: Path, served: Served, images: Any, wanted: Mapping[str, Any], modules: Sequence[str]
) -> None:
    """Write another format beside the SavedModel, and check it."""
    path, model = folder / FILES[form], served.model
    with _short_disk_errors(path):
        if form == "tflite":
            path.write_bytes(_lite(served))
        elif tf.keras.__version__.startswith("2."):
            model.save(path, save_format="keras_v3")  # in 2.12, "keras" means HDF5
        else:
            model.save(path)
    needed = sorted({*_modules(model), *modules}) if form == "keras" else ()
    check(form, path, images, wanted, modules=needed, outputs=served.outputs)


def _lite(served: Served) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([served.on_pixels(tf.uint8)], served)
    try:
        # The converter's C++ writes pages to standard error at any log level.
        with open(os.devnull, "wb") as nowhere, redirected(2, nowhere.fileno()):
            return bytes(converter.convert())
    except Exception as error:  # the converter's exception classes are not public
        lines = str(error).splitlines()
        lacking = next((line for line in lines if line.startswith("TF Select ops: ")), first_line(error))
        reason = lacking.replace("TF Select ops", "it has no")
        problem = f"TensorFlow Lite does not support this model: {reason}"
        remedy = "Leave out tflite; most of its operations need float32"
        raise ConfigError("export.formats: tflite", problem, remedy=remedy) from error


def _modules(model: Any) -> set[str]:
    """Return the modules that a Keras file of the model needs: those of layers outside of Keras."""
    kinds = set(map(type, layers_of(model)))
    return {kind.__module__ for kind in kinds if not is_of_keras(kind)}


@contextlib.contextmanager
def _short_disk_errors(path: Path) -> Iterator[None]:
    """Convert disk errors to a short OSError: TensorFlow has its own errors, and HDF5's are long."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(0, error.message.rpartition("; ")[2], str(path)) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno or 0, reason, str(path)) from error
