"""Check that an exported model works without the process that trained it."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist._utils.read_untrusted_files import glob_free_path
from tfdist._utils.run_process import run_process
from tfdist._utils.write_files import temporary_folder
from tfdist.errors import TfdistError
from tfdist.models.logits_or_probabilities import Outputs

# Programs that use an exported model as another user would: with TensorFlow alone. A Keras file also needs
# the modules of its layers, which Keras expects to be imported.
_PROGRAMS = {
    "saved_model": """
import sys
import numpy as np
import tensorflow as tf

path, images, answers = sys.argv[1:4]
images = np.load(images)
key = tf.range(len(images), dtype=tf.int64)
requests = {
    "serving_default": images,
    "serving_float": images.astype(np.float32),
    "serving_bytes": [tf.io.encode_png(image).numpy() for image in images],
}
signatures = tf.saved_model.load(path).signatures
given = {name: signatures[name](image=tf.constant(image), key=key) for name, image in requests.items()}
values = {f"{name} {part}": value.numpy() for name, answer in given.items() for part, value in answer.items()}
np.savez(answers, **values)
""",
    "keras": """
import importlib
import sys
import numpy as np
import tensorflow as tf

path, images, answers, kind, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
outputs = tf.keras.models.load_model(path, compile=False, safe_mode=True)(np.load(images), training=False)
outputs = tf.cast(outputs, tf.float32)
scores = outputs if kind == "probabilities" else tf.nn.softmax(outputs)
np.savez(answers, **{"call scores": scores.numpy()})
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
# Other kernels and other orders of sums differ by about 1e-6; a wrong export differs by far more.
_TOLERANCE = 1e-4


def check(
    form: str,
    path: Path,
    images: Any,
    wanted: Mapping[str, Any],
    *,
    modules: Sequence[str] = (),
    outputs: Outputs = "logits",
) -> None:
    """Compare an exported model's answers in a new process with the trained model's.

    Args:
        form: `saved_model`, `keras` or `tflite`.
        path: The exported model.
        images: The images to predict.
        wanted: The trained model's `key`, `scores` and `label`.
        modules: The modules to import before a Keras file is loaded.
        outputs: What the Keras model in a file returns.

    Raises:
        TfdistError: The new process cannot load the model, or its answers differ.
    """
    with temporary_folder("tfdist-check-") as scratch, glob_free_path(path) as place:
        inputs, answers = Path(scratch, "images.npy"), Path(scratch, "answers.npz")
        np.save(inputs, images)
        words = [sys.executable, "-c", _PROGRAMS[form], str(place), str(inputs), str(answers)]
        _run([*words, outputs, *modules], path)
        with np.load(answers) as file:
            given = {name: file[name] for name in file.files}
    for signature in sorted({name.partition(" ")[0] for name in given}):
        answer = {part: given[f"{signature} {part}"] for part in wanted if f"{signature} {part}" in given}
        if problem := _difference(answer, wanted):
            raise TfdistError(f"{path}: {signature}", f"a new process computes {problem}")


def _run(words: list[str], path: Path) -> None:
    # On the CPU and without this process's cluster, as a program that serves the model loads it.
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if problem := run_process(words, seconds=_SECONDS, environ=environ).problem:
        raise TfdistError(str(path), f"a new process could not load the export: {problem}")


def _difference(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the difference of an answer in words; an empty text if it does not differ."""
    scores, trained = given["scores"], wanted["scores"]
    if scores.shape != trained.shape:
        return f"{list(scores.shape)} scores, the trained model {list(trained.shape)}"
    worst = float(np.max(np.abs(scores - trained), initial=0.0))
    if not worst <= _TOLERANCE:  # true also for NaN
        return f"other scores than the trained model, by up to {worst:g}"
    # Not the trained model's labels: rounding may swap two classes of nearly equal scores.
    if not np.array_equal(given.get("label", labels := np.argmax(scores, axis=-1)), labels):
        return "labels that do not have the highest score"
    return (
        "" if np.array_equal(given.get("key", wanted["key"]), wanted["key"]) else "other keys than its inputs"
    )
