"""Train a model for a number of steps on one core, and say how fast it went: a task of a benchmark.

    python stepping.py '{"loop": "tfdist", "model": "mnist_cnn", …}' FOLDER

The loop is tfdist's, or the fit of tf_keras as TensorFlow's guides write it. `apart` is tfdist's, too, by two
processes that have nothing to do with each other: what two cores can do at all.
"""

import json
import os
import sys
import time
from typing import Any, NamedTuple

from cores import busy_seconds, tell

SHAPES = {"mnist_cnn": (28, 28, 1), "cifar10_cnn": (24, 24, 3)}
EXAMPLES = 4096
WARM_UP = 20  # steps
WINDOW = 10


def data(model: str, batch: int, seed: int) -> Any:
    """Make batches for ever; what is in the images changes nothing in the speed."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, size=(EXAMPLES, *SHAPES[model])).astype("uint8")
    labels = rng.integers(0, 10, size=EXAMPLES).astype("int32")
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(EXAMPLES, seed=seed).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # On one core a thread for each step of the pipeline would only take turns with the others.
    options.threading.private_threadpool_size = 1
    return dataset.batch(batch, drop_remainder=True).prefetch(2).with_options(options)


class Stamp(NamedTuple):
    """Record a moment: the clock, this process's CPU time, and how long its core has worked."""

    wall: float
    own: float
    busy: float

    @classmethod
    def now(cls) -> "Stamp":
        """Read the clocks."""
        return cls(time.perf_counter(), time.process_time(), busy_seconds())

    def since(self, begun: "Stamp", steps: int) -> dict[str, float]:
        """Compute the time and CPU time of a step, and for which part of the time others had the core."""
        wall, own, busy = (now - before for now, before in zip(self, begun, strict=True))
        return {"wall": wall / steps, "cpu": own / steps, "outside": max(0.0, (busy - own) / wall)}


def windows(keras: Any, strategy: Any, steps: int) -> Any:
    """Make a callback that measures some steps at a time, so many in all, once they go fast."""

    class Windows(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        _supports_tf_logs = True  # or tf_keras would look at the metrics after each step

        def __init__(self) -> None:
            super().__init__()
            self.found: list[dict[str, float]] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done = batch + 1 - WARM_UP
            if done % WINDOW or not 0 <= done <= steps:
                return
            now, sent = Stamp.now(), self.bytes_sent()
            if done:
                passed = (sent - self.sent) / WINDOW
                self.found.append({**now.since(self.begun, WINDOW), "sent": passed})
            self.begun, self.sent = now, sent

        def bytes_sent(self) -> int:
            ring = getattr(strategy, "ring", None)
            return ring.bytes_sent if ring else 0

    return Windows()


def main(order: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
    """Train; give the rank, and by window a step's seconds, CPU seconds, bytes, and what others had."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    is_ours = order["loop"] in ("tfdist", "apart")
    if not is_ours:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    import tfdist
    from tfdist.models.model_by_name import build

    cluster = tfdist.ClusterConfig.from_environment()
    is_one = len(cluster.tasks()) < 2 or order["loop"] == "apart"
    name, batch, steps = order["model"], order["batch"], order["steps"]
    if is_ours:
        said = {name: order[name] for name in ("implementation", "dtype") if order[name]}
        options = {} if is_one else {"communication": said}
        strategy = tfdist.make_strategy(None if is_one else cluster, **options)
    else:
        strategy = tf.distribute.get_strategy() if is_one else tf.distribute.MultiWorkerMirroredStrategy()
    rank = 0 if cluster.task is None else cluster.task.index
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build(name, SHAPES[name], 10, **({"fused_normalization": False} if order["is_stock"] else {}))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            tf.keras.optimizers.SGD(0.01, momentum=0.9),
            loss,
            metrics=["accuracy"],
            steps_per_execution=order["steps_per_execution"],
        )
    seen = windows(tf.keras, strategy, steps)
    # Of two that are apart, the other one must be there until this one's last window ends.
    more = WARM_UP if order["loop"] == "apart" else 0
    common = {"steps_per_epoch": WARM_UP + steps + more, "callbacks": [seen], "verbose": 0}
    if is_ours:
        tfdist.fit(model, lambda context: data(name, batch, rank), strategy=strategy, **common)
    else:
        whole = data(name, batch if is_one else batch * strategy.num_replicas_in_sync, rank)
        model.fit(whole, **common)
    width = {"bfloat16": 2, "int8": 1}.get(order["dtype"], 4)
    least = 2 * (1 - 1 / strategy.num_replicas_in_sync) * width * model.count_params()
    return rank, [{**each, "least": least} for each in seen.found]


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    tell(sys.argv[2], *main(order))
    if order["loop"] == "keras":
        # Two workers of TensorFlow's would wait a minute for each other before they end.
        os._exit(0)
