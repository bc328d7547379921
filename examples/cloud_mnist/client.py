"""Ask the model that examples/cloud_mnist/task.py has written what the digits in some pictures are.

    python examples/cloud_mnist/client.py --model_dir models photo-1.png photo-2.png

The pictures, PNG or JPEG of 28x28 grey pixels, go in with a key each. The answers come with the same keys,
one JSON object a line, so that question and answer can be put together elsewhere. It needs TensorFlow alone.
"""

import argparse
import json
from pathlib import Path

import tensorflow as tf


def main() -> None:
    """Load the newest model, ask it, and print the answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", type=Path, default=Path("models"), help="the one given to task.py")
    parser.add_argument("pictures", type=Path, nargs="+")
    flags = parser.parse_args()
    steps = [int(each.name) for each in flags.model_dir.glob("*") if each.name.isdigit()]
    if not steps:
        parser.error(f"--model_dir {flags.model_dir}: there is no model in it; train one with task.py")
    # The loaded object has to live as long as its signatures are used.
    model = tf.saved_model.load(str(flags.model_dir / str(max(steps))))
    answer = model.signatures["serving_bytes"](
        image=tf.constant([path.read_bytes() for path in flags.pictures]),
        key=tf.range(len(flags.pictures), dtype=tf.int64),
    )
    for key, label, scores in zip(
        *(answer[name].numpy() for name in ("key", "label", "scores")), strict=True
    ):
        told = {"key": int(key), "picture": str(flags.pictures[key]), "prediction": int(label)}
        print(json.dumps({**told, "score": round(float(scores[label]), 4)}))


if __name__ == "__main__":
    main()
