"""Train a model on a cluster, and ask it as a phone does: by the interpreter of TensorFlow Lite.

    python examples/phone.py

With `export.formats=[tflite]` a run writes `model.tflite` beside its SavedModel. What a phone runs it with is
called LiteRT today: its package is taken here if it is installed (`pip install ai-edge-litert`), and else the
interpreter in TensorFlow. The answers are held against those of the SavedModel.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.datasets.open_data import open_data

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:
    Interpreter = tf.lite.Interpreter

CONFIG = Path(__file__).parents[1] / "configs" / "ps2w.yaml"
PICTURES = 500


def trained(folder: Path, changes: list[str]) -> Path:
    """Train on a ps and two workers of this machine; give the folder of the export."""
    command = [sys.executable, "-m", "tfdist.train", "--config", str(CONFIG), "--run_dir", str(folder)]
    changes = ["export.formats=[tflite]", "data.name=digits", *changes]
    subprocess.run([*command, *(f"--set={each}" for each in changes)], check=True)
    return folder / "export" / "latest"


def asked_on_a_phone(model: Path, images: Any, keys: Any) -> dict[str, Any]:
    """Run the model in the interpreter, and return its answers."""
    answers: dict[str, Any] = Interpreter(str(model)).get_signature_runner()(image=images, key=keys)
    return answers


def main() -> None:
    """Read the flags, train, ask both, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--set", action="append", default=[], help="a value of the config, as for tfdist.train"
    )
    changes = parser.parse_args().set
    with tempfile.TemporaryDirectory() as folder:
        export = trained(Path(folder, "run"), changes)
        images, labels = next(iter(open_data("digits").test(PICTURES)))
        images, keys = images.numpy(), np.arange(PICTURES, dtype=np.int64)
        here = tf.saved_model.load(str(export)).signatures["serving_default"](
            image=images, key=tf.constant(keys)
        )
        there = asked_on_a_phone(export / "model.tflite", images, keys)
        size = (export / "model.tflite").stat().st_size
    apart = np.abs(there["scores"] - here["scores"].numpy()).max()
    same = int((there["label"] == here["label"].numpy()).sum())
    right = np.mean(there["label"] == labels.numpy())
    print(f"{size / 1e6:.1f} MB, run by {Interpreter.__module__}: {right:.1%} of {PICTURES} digits are right")
    print(f"{same} of the labels are those of the SavedModel, whose scores are at most {apart:.1e} away")


if __name__ == "__main__":
    main()
