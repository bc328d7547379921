"""Prove that an exported model works without the process that trained it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import TfdistError

__all__ = ["check"]

# What strangers would type. That of a Keras file alone may know more than TensorFlow: the modules that its
# layers come from, which Keras wants to be imported.
_STRANGERS = {
    "saved_model": """
import sys
import numpy as np
import tensorflow as tf

path, images, answers = sys.argv[1:4]
images = np.load(images)
key = tf.range(len(images), dtype=tf.int64)
asked = {
    "serving_default": images,
    "serving_float": images.astype(np.float32),
    "serving_bytes": [tf.io.encode_png(image).numpy() for image in images],
}
signatures = tf.saved_model.load(path).signatures
given = {name: signatures[name](image=tf.constant(image), key=key) for name, image in asked.items()}
found = {f"{name} {part}": value.numpy() for name, answer in given.items() for part, value in answer.items()}
np.savez(answers, **found)
""",
    "keras": """
import importlib
import sys
import numpy as np
import tensorflow as tf

path, images, answers, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
logits = tf.keras.models.load_model(path, compile=False, safe_mode=True)(np.load(images), training=False)
np.savez(answers, **{"call scores": tf.nn.softmax(tf.cast(logits, tf.float32)).numpy()})
""",
    "tflite": """
import sys
import numpy as np
import tensorflow as tf

path, images, answers = sys.argv[1:4]
images = np.load(images)
run = tf.lite.Interpreter(path).get_signature_runner("serving_default")
given = run(image=images, key=np.arange(len(images), dtype=np.int64))
np.savez(answers, **{f"serving_default {part}": value for part, value in given.items()})
""",
}
_SECONDS = 300
# Other kernels and other orders of summing differ by some 1e-6, and a wrong export is off by far more.
_TOLERANCE = 1e-4


def check(
    form: str, path: Path, images: Any, wanted: Mapping[str, Any], *, modules: Sequence[str] = ()
) -> None:
    """Let a fresh process load a model and answer, and hold its answers against the trained model's.

    Args:
        form: `saved_model`, `keras` or `tflite`.
        path: Where the model is.
        images: The pictures to ask it about.
        wanted: The trained model's `key`, `scores` and `label`.
        modules: What a Keras file needs to be imported.

    Raises:
        TfdistError: It cannot be loaded, or answers something else.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-check-") as scratch:
        asked, answers = Path(scratch, "images.npy"), Path(scratch, "answers.npz")
        np.save(asked, images)
        _ask([sys.executable, "-c", _STRANGERS[form], str(path), str(asked), str(answers), *modules], path)
        with np.load(answers) as file:
            given = {name: file[name] for name in file.files}
    for signature in sorted({name.partition(" ")[0] for name in given}):
        answer = {part: given[f"{signature} {part}"] for part in wanted if f"{signature} {part}" in given}
        if problem := _difference(answer, wanted):
            raise TfdistError(f"{path}: {signature}", f"a fresh process gives {problem}")


def _ask(words: list[str], path: Path) -> None:
    # Its own process, on the CPU and without this one's cluster: as whoever serves the model will load it.
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        run = subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise TfdistError(str(path), f"a fresh process did not load the export in {_SECONDS} s") from None
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"it ended with {run.returncode}"])[-1]
        raise TfdistError(str(path), f"a fresh process could not load the export: {last}")


def _difference(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Say in what an answer differs; nothing where it does not."""
    scores, trained = given["scores"], wanted["scores"]
    if scores.shape != trained.shape:
        return f"{list(scores.shape)} scores, the trained model {list(trained.shape)}"
    worst = float(np.max(np.abs(scores - trained), initial=0.0))
    if not worst <= _TOLERANCE:  # also where it is not a number
        return f"other scores than the trained model, by up to {worst:g}"
    # Not the trained model's labels: where two classes score alike, rounding may turn them round.
    if not np.array_equal(given.get("label", labels := np.argmax(scores, axis=-1)), labels):
        return "labels that do not have the highest score"
    return "" if np.array_equal(given.get("key", wanted["key"]), wanted["key"]) else "other keys than it got"
