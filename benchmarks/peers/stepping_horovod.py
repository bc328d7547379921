"""Train a model with Keras and Horovod on a core each, as `stepping.py` does with TensorFlow alone.

    python stepping_horovod.py '{"model": "mnist_cnn", …}' FOLDER
    horovodrun --gloo -np 2 python stepping_horovod.py '{"model": "mnist_cnn", …}' FOLDER

It is what Horovod's guide for Keras writes.
"""

import json
import os
import sys
from typing import Any

from cores import tell
from stepping import SHAPES, WARM_UP, data, windows


def main(order: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
    """Train; give this task's rank, and what its windows have seen."""
    rank = int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))  # before TensorFlow has threads
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    from tfdist.models.model_by_name import build

    hvd.init()
    tf.keras.utils.set_random_seed(0)
    name, steps = order["model"], order["steps"]
    model = build(name, SHAPES[name], 10)
    # The optimizers of before Keras 2.11, which Horovod's wrapper was written for.
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.01 * hvd.size(), momentum=0.9))
    model.compile(
        optimizer,
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
    seen = windows(tf.keras, None, steps)
    model.fit(
        data(name, order["batch"], hvd.rank()),
        steps_per_epoch=WARM_UP + steps,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), seen],
        verbose=0,
    )
    return hvd.rank(), seen.found


if __name__ == "__main__":
    tell(sys.argv[2], *main(json.loads(sys.argv[1])))
