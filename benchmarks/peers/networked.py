"""Train a model with Keras over a network, for some steps: a task of a benchmark.

    python networked.py '{"loop": "tfdist", "model": "mnist_cnn", …}' FOLDER

The loop is tfdist's, the fit of tf_keras under MultiWorkerMirroredStrategy, or that with Horovod's optimizer.
Afterwards the same is done with a model that has the same weights and computes nothing: the exchange alone.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import network_horovod
from network_layers import EXAMPLES, examples
from network_traffic import Recorder, note_task, tell, wait_for_results

RATE = 0.001


def main(order: dict[str, Any], folder: Path) -> None:
    """Train, and write what the windows have seen."""
    if order["loop"] == "keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    rank, workers = rank_and_size()
    note_task(folder, f"worker-{rank}")
    import network_keras
    import tensorflow as tf

    loop = LOOPS[order["loop"]](order, rank, workers)
    momentum = 0.0 if order["model"] == "two_tower" else 0.9
    tf.keras.utils.set_random_seed(0)
    found = {}
    for part, seconds in (("train", order["seconds"]), ("exchange", 0.0)):
        is_bare = part == "exchange" or order["seconds"]
        seen = Recorder(folder, order["warm_up"], order["steps"], order["window"])
        with loop.scope():
            name = order["model"]
            model = network_keras.bare(name, seconds) if is_bare else network_keras.whole(name)
            loss = total if is_bare else network_keras.loss_of(name)
            model.compile(loop.optimizer(tf.keras, momentum), loss, **loop.compile_options)
        loop.fit(model, order, callback(tf.keras, seen), seen.steps)
        found[part] = seen.windows
    if rank == 0:
        tell(folder, **found)
    wait_for_results(folder)


def total(_: Any, y: Any) -> Any:
    """Return the outputs as the loss."""
    return y[:, 0]


def data(model: str, batch: int, seed: int) -> Any:
    """Make batches for ever."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(examples(model, seed)).shuffle(EXAMPLES, seed=seed).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # On one core a thread for each step of the pipeline would only take turns with the others.
    options.threading.private_threadpool_size = 1
    return dataset.batch(batch, drop_remainder=True).prefetch(2).with_options(options)


def callback(keras: Any, seen: Recorder) -> Any:
    """Make a callback that counts the steps."""

    class Steps(keras.callbacks.Callback):
        _supports_tf_logs = True  # or tf_keras would look at the metrics after each step

        def on_train_batch_end(self, batch, logs=None):
            seen.after_step(batch + 1)

    return Steps()


class Keras:
    """Train as TensorFlow's guides write it, with tf_keras."""

    def __init__(self, order: dict[str, Any], rank: int, workers: int) -> None:
        import tensorflow as tf

        self.rank, self.workers = rank, workers
        self.strategy = self.make(tf, workers == 1, order)
        self.compile_options: dict[str, Any] = self.options(order)

    def make(self, tf: Any, is_one: bool, order: dict[str, Any]) -> Any:
        return tf.distribute.get_strategy() if is_one else tf.distribute.MultiWorkerMirroredStrategy()

    def options(self, order: dict[str, Any]) -> dict[str, Any]:
        return {}

    def scope(self) -> Any:
        return self.strategy.scope()

    def optimizer(self, keras: Any, momentum: float) -> Any:
        return keras.optimizers.SGD(RATE, momentum=momentum)

    def fit(self, model: Any, order: dict[str, Any], seen: Any, steps: int) -> None:
        batches = data(order["model"], order["batch"] * self.workers, self.rank)
        model.fit(batches, steps_per_epoch=steps, callbacks=[seen], verbose=0)


class Tfdist(Keras):
    """Train with tfdist."""

    def make(self, tf: Any, is_one: bool, order: dict[str, Any]) -> Any:
        import tfdist

        if is_one:
            return tfdist.make_strategy(None)
        said = {name: order[name] for name in ("implementation", "dtype", "encryption") if order[name]}
        strategy = tfdist.make_strategy(tfdist.ClusterConfig.from_environment(), communication=said)
        if order["buckets"]:
            from tfdist._utils.tf_private import cross_device_ops_of
            from tfdist.strategies.plan_buckets import BucketBytes

            cross_device_ops_of(strategy).buckets.bucket_bytes = BucketBytes(*order["buckets"])
        return strategy

    def options(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"steps_per_execution": order["window"]}

    def fit(self, model: Any, order: dict[str, Any], seen: Any, steps: int) -> None:
        import tfdist

        def make(context: Any) -> Any:
            return data(order["model"], order["batch"], self.rank)

        tfdist.fit(model, make, strategy=self.strategy, steps_per_epoch=steps, callbacks=[seen], verbose=0)


class Horovod(Keras):
    """Train as Horovod's guide for Keras writes it."""

    def make(self, tf: Any, is_one: bool, order: dict[str, Any]) -> Any:
        network_horovod.connect(Path(sys.argv[2]))
        import horovod.tensorflow.keras as hvd

        hvd.init()
        self.hvd = hvd
        return tf.distribute.get_strategy()

    def options(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"experimental_run_tf_function": False}

    def optimizer(self, keras: Any, momentum: float) -> Any:
        # The optimizers of before Keras 2.11, which Horovod's wrapper was written for.
        return self.hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(RATE, momentum=momentum))

    def fit(self, model: Any, order: dict[str, Any], seen: Any, steps: int) -> None:
        first = self.hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        batches = data(order["model"], order["batch"], self.rank)
        model.fit(batches, steps_per_epoch=steps, callbacks=[first, seen], verbose=0)


LOOPS: dict[str, type[Keras]] = {"tfdist": Tfdist, "keras": Keras, "horovod": Horovod}


def rank_and_size() -> tuple[int, int]:
    """Return which of how many workers this is."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["task"]["index"], len(config["cluster"]["worker"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    # Two workers of TensorFlow's would wait a minute for each other before they end.
    os._exit(0)
