"""Train a model of a given size on a cluster, and say what a step took of all processes: a benchmark's task.

    python growing.py '{"strategy": "multi_worker_mirrored", "model": "dense", "size": 4, …}' FILE

`dense` has so many MB of variables, in layers of 1 MB, or of 4 MB where there are more; `embedding` has so
many rows, of which a step reads a few.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes import marked, own_mark

ROW, IDS = 8, 64
LARGE = 1024  # units of a layer of 4 MB


def dense(megabytes: int) -> Any:
    """Make layers that compute little beside what they weigh: a step has few examples."""
    import tensorflow as tf

    units, count = (LARGE // 2, megabytes) if megabytes < 4 else (LARGE, megabytes // 4)
    layers = [tf.keras.layers.Dense(units, use_bias=False) for _ in range(count)]
    return tf.keras.Sequential([tf.keras.Input((units,)), *layers])


def embedding(rows: int) -> Any:
    """Make an embedding, and little beside it."""
    import tensorflow as tf

    layers = [tf.keras.layers.Embedding(rows, ROW), tf.keras.layers.GlobalAveragePooling1D()]
    return tf.keras.Sequential(
        [tf.keras.Input((IDS,), dtype="int32"), *layers, tf.keras.layers.Dense(LARGE // 64)]
    )


def data(model: Any, order: dict[str, Any], seed: int) -> Any:
    """Make batches for ever: of numbers, or of rows' numbers."""
    import numpy as np
    import tensorflow as tf

    chance, count = np.random.default_rng(seed), 64 * order["batch"]
    is_rows = order["model"] == "embedding"
    width = model.input_shape[1]
    x = (
        chance.integers(0, order["size"], (count, width), np.int32)
        if is_rows
        else chance.random((count, width))
    )
    y = np.zeros([count, model.output_shape[1]], np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x if is_rows else x.astype(np.float32), y))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.threading.private_threadpool_size = 1
    return dataset.repeat().batch(order["batch"], drop_remainder=True).prefetch(2).with_options(options)


def window(keras: Any, steps: int) -> Any:
    """Make a callback that measures the last epoch: by the clock, and the CPU seconds of all processes."""

    class Window(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        found: dict[str, Any]

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun, self.before = time.perf_counter(), marked(own_mark())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            wall, after = time.perf_counter() - self.begun, marked(own_mark())
            taken = {name: each.cpu - self.before[name].cpu for name, each in after.items()}
            self.found = {
                "wall": wall / steps,
                "cpu": sum(taken.values()) / steps,
                "resident": {name: each.resident for name, each in after.items()},
            }

    return Window()


def main(order: dict[str, Any], file: Path) -> None:
    """Serve, or train."""
    import tensorflow as tf

    import tfdist

    cluster = tfdist.ClusterConfig.from_environment()
    if cluster.serves:
        tfdist.serve(cluster)
        return
    strategy = tfdist.make_strategy(cluster, order["strategy"])
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = {"dense": dense, "embedding": embedding}[order["model"]](order["size"])
        model.compile(tf.keras.optimizers.SGD(1e-3), "mse", steps_per_execution=order["steps_per_execution"])
    rank = 0 if cluster.task is None else cluster.task.index
    seen = window(tf.keras, order["steps"])
    tfdist.fit(
        model,
        lambda context: data(model, order, rank),
        strategy=strategy,
        epochs=2,
        steps_per_epoch=order["steps"],
        callbacks=[seen],
        verbose=0,
    )
    if cluster.is_chief:
        file.write_text(json.dumps(seen.found))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
