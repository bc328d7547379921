"""Load an exported model of any format as a function from images to scores."""

import json
import shlex
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist.models  # noqa: F401  # registers the layers that a Keras file may name
from tfdist._utils.read_untrusted_files import check_regular, glob_free_path
from tfdist.errors import ConfigError, first_line
from tfdist.export.export_folder import Exported

_MOST_CONFIG_BYTES = 64 << 20

Scores = Callable[[Any], Any]


def load(exported: Exported) -> Scores:
    """Return a model as a function from uint8 images to scores.

    Raises:
        ConfigError: TensorFlow or Keras cannot load the model.
    """
    has_probabilities = exported.about.get("outputs") == "probabilities"
    loaders: dict[str, Callable[[str], Scores]] = {
        "saved_model": _saved_model,
        "keras": lambda path: _keras(path, has_probabilities=has_probabilities),
        "tflite": _tflite,
    }
    try:
        return loaders[exported.format](str(exported.path))
    except Exception as error:  # each format has its own errors, and a Keras layer may raise any
        problem = f"cannot be loaded: {first_line(error)}"
        remedy, builder = "Check that no file has changed since the export", str(exported.about.get("model"))
        if exported.format == "keras" and ":" in builder:
            remedy = f"If the model has layers of your own, as in {builder}, predict with the SavedModel:"
            remedy += f" --model {shlex.quote(str(exported.path.parent))}"
        raise ConfigError(str(exported.path), problem, remedy=remedy) from error


def _saved_model(path: str) -> Scores:
    for file in Path(path).rglob("*"):
        if not file.is_dir():
            check_regular(file)  # TensorFlow would wait at a FIFO
    with glob_free_path(Path(path)) as folder:
        loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]

    def scores(images: Any) -> Any:
        return signature(image=tf.constant(images), key=tf.range(len(images), dtype=tf.int64))[
            "scores"
        ].numpy()

    return scores


def _keras(path: str, *, has_probabilities: bool) -> Scores:
    with zipfile.ZipFile(
        path
    ) as file:  # Keras's older formats are not zip files, and Keras 2 runs the code in them
        if file.getinfo("config.json").file_size > _MOST_CONFIG_BYTES:
            raise ValueError("its config.json is too large")
        _refuse_code(json.loads(file.read("config.json")))
    model = tf.keras.models.load_model(path, compile=False, safe_mode=True)

    def scores(images: Any) -> Any:
        outputs = tf.cast(model(images, training=False), tf.float32)
        return outputs if has_probabilities else tf.nn.softmax(outputs)

    call = tf.function(scores, autograph=False)
    return lambda images: call(tf.constant(images)).numpy()


def _refuse_code(config: Any) -> None:
    """Raise at a Lambda layer, whose code is in the file: before 2.13, Keras runs it even in safe mode."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    if isinstance(config, dict) and config.get("class_name") in ("Lambda", "__lambda__"):
        raise ValueError("it has a Lambda layer, whose code may be malicious")
    for part in parts:
        _refuse_code(part)


def _tflite(path: str) -> Scores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow announces that the interpreter will move to LiteRT
        run = tf.lite.Interpreter(path).get_signature_runner("serving_default")
    return lambda images: run(image=images, key=np.arange(len(images), dtype=np.int64))["scores"]
