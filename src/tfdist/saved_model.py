"""Write a trained model as a SavedModel that needs nothing but TensorFlow, and prove that it does.

    RUN/export/<step>/      the model; RUN/export/latest points to the newest
    serving_default         image (uint8 pixels, any batch), key (int64)  ->  key, scores, label

The key passes through, so that a batch job can pair its answers with its questions.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import TfdistError

__all__ = ["export"]

# What a stranger would type; it knows neither Keras nor tfdist, so a model that needs either does not pass.
_STRANGER = """
import sys
import numpy as np
import tensorflow as tf

folder, images, answers = sys.argv[1:]
serve = tf.saved_model.load(folder).signatures["serving_default"]
images = np.load(images)
given = serve(image=tf.constant(images), key=tf.range(len(images), dtype=tf.int64))
np.savez(answers, **{name: value.numpy() for name, value in given.items()})
"""
_CHECK_SECONDS = 300
# Another process may choose another kernel or another order of summing; a wrong export is off by far more.
_TOLERANCE = 1e-4


def export(
    model: Any,
    folder: Path,
    *,
    step: int,
    images: np.ndarray[Any, np.dtype[np.uint8]],
    metadata: Mapping[str, Any],
) -> Path:
    """Write `folder/<step>` atomically, once a fresh process has loaded it and given the model's own scores.

    Args:
        model: A Keras model of this process's own devices, from pixels to logits.
        folder: Where the exports of a run are kept.
        step: The training step, which names the export.
        images: A few images as the data set has them, to compare the scores on.
        metadata: What is known of the model, for `metadata.json` beside it.

    Raises:
        TfdistError: The disk failed, or the export does not give the scores of the model.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as scratch:
            written = Path(scratch, str(step))
            tf.saved_model.save(served := _Served(model, images.shape[1:]), str(written))
            wanted = served.serve(tf.constant(images), tf.range(len(images), dtype=tf.int64))
            _check(written, images, {name: value.numpy() for name, value in wanted.items()}, Path(scratch))
            (written / "metadata.json").write_text(json.dumps({"step": step, **metadata}, indent=2) + "\n")
            final = folder / str(step)
            if final.exists():
                shutil.rmtree(final)
            written.replace(final)
        _point_latest(folder, final)
    except OSError as error:
        raise TfdistError(str(folder), f"the export cannot be written: {error.strerror or error}") from None
    return final


class _Served(tf.Module):  # type: ignore[misc]
    """Hold what is exported: the model and its signature."""

    def __init__(self, model: Any, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model

        def serve(image: Any, key: Any) -> dict[str, Any]:
            scores = tf.nn.softmax(model(image, training=False))
            return {"key": key, "scores": scores, "label": tf.argmax(scores, axis=-1)}

        image = tf.TensorSpec([None, *image_shape], tf.uint8, name="image")
        self.serve = tf.function(serve, input_signature=[image, tf.TensorSpec([None], tf.int64, name="key")])


def _check(written: Path, images: Any, wanted: Mapping[str, Any], scratch: Path) -> None:
    """Let a fresh process answer, and hold its answers against the model's."""
    asked, answered = scratch / "images.npy", scratch / "answers.npz"
    np.save(asked, images)
    # Its own process, on the CPU and without this one's cluster: as whoever serves the model will load it.
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ["CUDA_VISIBLE_DEVICES"] = "-1"
    run = subprocess.run(
        [sys.executable, "-c", _STRANGER, str(written), str(asked), str(answered)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_CHECK_SECONDS,
        check=False,
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise TfdistError(str(written), f"a fresh process could not load the export: {last}")
    with np.load(answered) as given:
        worst = float(np.max(np.abs(given["scores"] - wanted["scores"])))
        labels = np.argmax(given["scores"], axis=-1)
        if not worst <= _TOLERANCE:  # also where it is not a number
            problem = f"a fresh process gives other scores than the model, by up to {worst:g}"
        elif not (np.array_equal(given["key"], wanted["key"]) and np.array_equal(given["label"], labels)):
            problem = "a fresh process gives other keys or labels than it should"
        else:
            return
    raise TfdistError(str(written), problem)


def _point_latest(folder: Path, final: Path) -> None:
    link = folder / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(folder / "latest")  # atomic: there is always a whole model behind it
