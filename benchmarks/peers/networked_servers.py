"""Train a model on parameter servers over a network, for some steps: a task of a benchmark.

    python networked_servers.py '{"loop": "tfdist", "strategy": "parameter_server", …}' FOLDER

The loop is tfdist's, or the fit of tf_keras as TensorFlow's guides write it. The chief measures an epoch, at
whose end all workers are done. Afterwards the same is done with a model that has the same weights and
computes nothing.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from network_traffic import Moment, note_task, tell
from networked import RATE, data, total
from stepping_servers import serve


def recorder(keras: Any, folder: Path, steps: int) -> Any:
    """Make a callback that measures the last epoch."""

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.begun = Moment.now(folder)

        def on_epoch_end(self, epoch, logs=None):
            self.windows = [Moment.now(folder).since(self.begun, steps)]

    return Epochs()


def main(order: dict[str, Any], folder: Path) -> None:
    """Train, or serve."""
    is_ours = order["loop"] == "tfdist"
    if not is_ours:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import network_keras
    import tensorflow as tf

    import tfdist

    cluster = tfdist.ClusterConfig.from_environment()
    note_task(folder, str(cluster.task))
    if not cluster.is_chief:
        serve(cluster, is_ours, folder)  # until the benchmark ends this process
        return
    if is_ours:
        communication = {name: order[name] for name in ("implementation", "encryption") if order[name]}
        strategy = tfdist.make_strategy(cluster, order["strategy"], communication=communication)
    else:
        strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    name, momentum = order["model"], 0.0 if order["model"] == "two_tower" else 0.9
    tf.keras.utils.set_random_seed(0)
    found = {}
    for part in ("train", "exchange"):
        with strategy.scope():
            is_bare = part == "exchange"
            model = network_keras.bare(name, 0.0) if is_bare else network_keras.whole(name)
            loss = total if is_bare else network_keras.loss_of(name)
            window = {"steps_per_execution": order["window"]} if is_ours else {}
            model.compile(tf.keras.optimizers.SGD(RATE, momentum=momentum), loss, **window)
        seen = recorder(tf.keras, folder, order["steps"])
        fit(model, order, strategy, seen)
        found[part] = seen.windows
    tell(folder, **found)


def fit(model: Any, order: dict[str, Any], strategy: Any, seen: Any) -> None:
    """Train two epochs, in each of which every worker has the same number of steps, more or less."""
    import tensorflow as tf

    import tfdist

    def make(context: Any) -> Any:
        return data(order["model"], order["batch"], context.input_pipeline_id)

    per_step = 1 if order["strategy"] == "parameter_server_sync" else order["workers"]
    common = {
        "epochs": 2,
        "steps_per_epoch": order["steps"] * per_step,
        "callbacks": [seen],
        "verbose": 0,
    }
    if order["loop"] == "tfdist":
        tfdist.fit(model, make, strategy=strategy, **common)
    else:
        model.fit(tf.keras.utils.experimental.DatasetCreator(make), **common)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
