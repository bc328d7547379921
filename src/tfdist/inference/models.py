"""Load an exported model of any format as a function from pictures to scores."""

import json
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist.models  # noqa: F401  # registers the layers that a Keras file may name
from tfdist.errors import ConfigError
from tfdist.exports import Exported

__all__ = ["Scores", "load"]

Scores = Callable[[Any], Any]


def load(exported: Exported) -> Scores:
    """Load a model; what it gives takes uint8 pictures and gives scores that add up to 1.

    Raises:
        ConfigError: It cannot be loaded.
    """
    loaders: dict[str, Callable[[str], Scores]] = {
        "saved_model": _saved_model,
        "keras": _keras,
        "tflite": _tflite,
    }
    try:
        return loaders[exported.format](str(exported.path))
    except Exception as error:  # each format has errors of its own, and Keras any that a layer raises
        problem = f"cannot be loaded: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        raise ConfigError(
            str(exported.path), problem, remedy="Has it been changed since it was exported?"
        ) from error


def _saved_model(path: str) -> Scores:
    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]

    def scores(images: Any) -> Any:
        return signature(image=tf.constant(images), key=tf.range(len(images), dtype=tf.int64))[
            "scores"
        ].numpy()

    return scores


def _keras(path: str) -> Scores:
    with zipfile.ZipFile(
        path
    ) as file:  # which the older formats are not, in which Keras 2 runs what it finds
        _refuse_code(json.loads(file.read("config.json")))
    model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
    call = tf.function(lambda images: tf.nn.softmax(tf.cast(model(images, training=False), tf.float32)))
    return lambda images: call(tf.constant(images)).numpy()


def _refuse_code(config: Any) -> None:
    """Refuse a Lambda layer, whose code is in the file: Keras before 2.13 runs it in safe mode too."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    if isinstance(config, dict) and config.get("class_name") in ("Lambda", "__lambda__"):
        raise ValueError("a Lambda layer in it holds code, which may be anybody's")
    for part in parts:
        _refuse_code(part)


def _tflite(path: str) -> Scores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it will move; as long as it is here, it works
        run = tf.lite.Interpreter(path).get_signature_runner("serving_default")
    return lambda images: run(image=images, key=np.arange(len(images), dtype=np.int64))["scores"]
